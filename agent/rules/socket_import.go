// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"slices"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/socketimport"
)

// socketImport tells the programs, once for each endpoint, of connections that are
// older than its chain.
type socketImport struct {
	node.Idle
	chains   *chains.Chains
	pins     string          // where the endpoint half's maps are pinned
	imported map[uint32]bool // endpoints by number
	log      logr.Logger
}

// Apply only logs what failed: rules hold for other connections all the same.
func (s *socketImport) Apply(_ context.Context, model *node.Model) (report node.Report) {
	if s.chains.AttachMode() == "" { // no endpoint has a chain, and nothing is recorded
		s.imported = nil
		return report
	}
	numbers := map[uint32]bool{}
	for _, attached := range s.chains.Endpoints() {
		numbers[attached.Number] = s.imported[attached.Number]
	}
	fresh := slices.DeleteFunc(governedBy(s.chains, model), func(g governed) bool { return numbers[g.Number] })
	if err := s.importAll(fresh); err != nil {
		s.log.Error(err, "failed to open the maps for a socket import")
		return report
	}
	for _, g := range fresh {
		numbers[g.Number] = true
	}
	s.imported = numbers
	return report
}

// importAll loads a program to look with, so it does nothing where nobody is new.
func (s *socketImport) importAll(fresh []governed) error {
	if len(fresh) == 0 {
		return nil
	}
	maps, err := socketimport.Open(s.pins)
	if err != nil {
		return err
	}
	defer maps.Close()
	for _, g := range fresh {
		if _, err := maps.Import(socketimport.Pod{Namespace: g.Namespace, Number: g.Number, Interface: g.Interface}); err != nil {
			s.log.Error(err, "failed to import the sockets of connections that are older than the chain", "endpoint", g.Name)
		}
	}
	return nil
}

// Remove leaves what was imported to the maps that have it.
func (s *socketImport) Remove(context.Context) error { return nil }

func (s *socketImport) Close() error { return nil }
