// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"errors"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/endpoints/namespace"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/programs"
	"braid.dev/braid/api/v1alpha1"
)

// programSchedules lets each program that schedules govern the pods whose rules ask for
// it.
type programSchedules struct {
	node.Idle
	programs *adminPrograms
}

func (s *programSchedules) Apply(_ context.Context, model *node.Model) (report node.Report) {
	p := s.programs
	if p.manager == nil {
		return report
	}
	if p.chains.AttachMode() == "" { // no chain could be, and the maps are gone
		report.Err = p.Close()
		return report
	}
	cookies, failed := cookiesOf(governedBy(p.chains, model))
	for name, inUse := range p.loaded.schedules {
		if inUse {
			failed = errors.Join(failed, p.manager.Govern(programs.Key(name.Policy, name.Name), cookies[name]))
		}
	}
	if failed != nil {
		p.log.Error(failed, "failed to let programs schedule the connections of some pods")
	}
	return report
}

// cookiesOf are the network namespaces that each program is to govern.
func cookiesOf(all []governed) (cookies map[chains.ProgramName][]uint64, failed error) {
	cookies = map[chains.ProgramName][]uint64{}
	for _, g := range all {
		names := schedulesOf(g.Rules)
		if len(names) == 0 {
			continue
		}
		identity, err := namespace.IdentifyAt(g.Namespace)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		for _, name := range names {
			cookies[name] = append(cookies[name], identity.Cookie)
		}
	}
	return cookies, failed
}

// schedulesOf are the programs that rules may mean by their strategies.
func schedulesOf(rules []v1alpha1.PlanRule) (names []chains.ProgramName) {
	for i := range rules {
		for _, action := range rules[i].Actions {
			if action.Schedule != nil && action.At != v1alpha1.ActionAtPeer {
				names = append(names, chains.ProgramOf(&rules[i], action.Schedule.Strategy))
			}
		}
	}
	return names
}

// Remove leaves the programs to who loaded them.
func (s *programSchedules) Remove(context.Context) error { return nil }

func (s *programSchedules) Close() error { return nil }
