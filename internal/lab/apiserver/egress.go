// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"os"
)

const egressFile = "egress.yaml"

const egressFormat = `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport:
      uds:
        udsName: %q
`

// writeEgress tells the server by which way it reaches the cluster's nodes.
func (s *Server) writeEgress() error {
	if s.options.Tunnel == "" {
		return nil
	}
	if err := os.WriteFile(s.path(egressFile), fmt.Appendf(nil, egressFormat, s.options.Tunnel), 0o600); err != nil {
		return fmt.Errorf("writing how the server reaches nodes: %w", err)
	}
	return nil
}
