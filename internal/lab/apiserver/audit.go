// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"encoding/json"
	"fmt"
	"os"
)

const (
	auditPolicyFile = "audit-policy.json"
	auditFile       = "audit.log"
)

// AuditPath is the file of the requests of Options.Audited: for each an event of
// audit.k8s.io/v1 on a line of its own, when it has been answered.
func (s *Server) AuditPath() string { return s.path(auditFile) }

// writeAuditPolicy tells the server whose requests it writes down.
func (s *Server) writeAuditPolicy() error {
	if len(s.options.Audited) == 0 {
		return nil
	}
	type rule struct {
		Level string   `json:"level"`
		Users []string `json:"users,omitempty"`
	}
	content, err := json.Marshal(map[string]any{
		"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": []string{"RequestReceived", "ResponseStarted"},
		"rules": []rule{{Level: "Metadata", Users: s.options.Audited}, {Level: "None"}},
	})
	if err != nil {
		return fmt.Errorf("encoding the audit policy: %w", err)
	}
	if err := os.WriteFile(s.path(auditPolicyFile), content, 0o600); err != nil {
		return fmt.Errorf("writing the audit policy: %w", err)
	}
	return nil
}
