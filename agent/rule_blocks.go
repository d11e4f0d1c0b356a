// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/endpoints/namespace"
	"braid.dev/braid/agent/pace"
	"braid.dev/braid/agent/programs"
	"braid.dev/braid/api/v1alpha1"
)

// ownBlocks are the blocks of admins that the plan's chains refer to.
type ownBlocks struct {
	pins       string // where the endpoint half's maps are pinned
	directory  string // of blocks as files
	configMaps programs.ConfigMaps
	log        logr.Logger

	manager *programs.Manager // nil while there are none
	maps    []*ebpf.Map       // the manager's
	looked  bool              // for those of an earlier agent
}

// loadedBlocks are the blocks in use, and why others are not.
type loadedBlocks struct {
	slots      map[chains.BlockName]uint32
	algorithms map[chains.BlockName]string
	schedules  map[chains.BlockName]bool
	refused    map[chains.BlockName]error
}

func (o *ownBlocks) apply(ctx context.Context, c *chains.Chains, plan *v1alpha1.MPTCPNodePlan) (loadedBlocks, error) {
	var wanted []v1alpha1.PlanProgram
	if plan != nil {
		wanted = plan.Spec.Programs
	}
	if !o.isNeeded(wanted) {
		return loadedBlocks{}, nil
	}
	if err := o.open(c); err != nil {
		return loadedBlocks{}, fmt.Errorf("preparing for blocks: %w", err)
	}
	result, err := o.manager.Apply(ctx, wanted)
	o.looked = true
	if len(wanted) == 0 {
		err = errors.Join(err, o.close())
	}
	return loadedOf(wanted, result), err
}

// isNeeded is false where there is nothing to load, nor to remove.
func (o *ownBlocks) isNeeded(wanted []v1alpha1.PlanProgram) bool {
	if len(wanted) > 0 || o.manager != nil {
		return true
	}
	_, err := os.Stat(o.pins)
	return !o.looked && err == nil
}

func (o *ownBlocks) open(c *chains.Chains) error {
	if o.manager != nil {
		return nil
	}
	if err := c.Prepare(); err != nil {
		return err
	}
	for _, name := range []string{"custom_blocks", "block_context"} {
		opened, err := c.Map(name)
		if err != nil {
			return errors.Join(err, o.closeMaps())
		}
		o.maps = append(o.maps, opened)
	}
	cgroup, err := pace.CgroupRoot()
	if err != nil {
		o.log.Info("blocks of type Schedule cannot be used", "reason", err.Error())
	}
	o.manager = programs.NewManager(programs.Options{
		PinPath: o.pins, CustomBlocks: o.maps[0], BlockContext: o.maps[1],
		Cgroup: cgroup, Directory: o.directory, ConfigMaps: o.configMaps, Log: o.log,
	})
	return nil
}

func loadedOf(wanted []v1alpha1.PlanProgram, result programs.Result) loadedBlocks {
	l := loadedBlocks{
		slots: map[chains.BlockName]uint32{}, algorithms: map[chains.BlockName]string{},
		schedules: map[chains.BlockName]bool{}, refused: map[chains.BlockName]error{},
	}
	for i := range wanted {
		name := chains.BlockName{Policy: wanted[i].Policy, Name: wanted[i].Name}
		key := programs.Key(name.Policy, name.Name)
		if slot, ok := result.Slots[key]; ok {
			l.slots[name] = slot
		}
		if algorithm, ok := result.Algorithms[key]; ok {
			l.algorithms[name] = algorithm
		}
		l.schedules[name] = result.Schedules[key]
		if reason := result.Errors[key]; reason != nil {
			l.refused[name] = reason
		}
	}
	return l
}

// algorithm is the kernel's name of a congestion control, which may be a block's.
func (l *loadedBlocks) algorithm(rule *v1alpha1.PlanRule, name string) string {
	if algorithm, ok := l.algorithms[chains.BlockOf(rule, name)]; ok {
		return algorithm
	}
	return name
}

// govern lets each schedule govern the pods whose rules ask for it.
func (o *ownBlocks) govern(p planned, loaded loadedBlocks, attached []chains.Attached) error {
	if o.manager == nil {
		return nil
	}
	cookies := map[chains.BlockName][]uint64{}
	var failed error
	for _, endpoint := range attached {
		found, here := p.found[endpoint.UID]
		names := schedulesOf(endpoint.Rules)
		if !here || len(names) == 0 {
			continue
		}
		identity, err := namespace.IdentifyAt(found.Path)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		for _, name := range names {
			cookies[name] = append(cookies[name], identity.Cookie)
		}
	}
	for name, inUse := range loaded.schedules {
		if inUse {
			failed = errors.Join(failed, o.manager.Govern(programs.Key(name.Policy, name.Name), cookies[name]))
		}
	}
	return failed
}

// schedulesOf are the blocks that rules may mean by their strategies.
func schedulesOf(rules []v1alpha1.PlanRule) (names []chains.BlockName) {
	for i := range rules {
		for _, action := range rules[i].Actions {
			if action.Schedule != nil {
				names = append(names, chains.BlockOf(&rules[i], action.Schedule.Strategy))
			}
		}
	}
	return names
}

// addProblems says in the statuses of rules what they ask in vain: which of their
// blocks were refused, and what the node or the pod does not have.
func (l *loadedBlocks) addProblems(statuses []v1alpha1.RuleStatus, rules []v1alpha1.PlanRule, manager v1alpha1.SubflowManager) []v1alpha1.RuleStatus {
	for i := range rules {
		rule := &rules[i]
		for _, name := range blocksOf(rule) {
			if reason := l.refused[name]; reason != nil {
				statuses = addProblem(statuses, rule, fmt.Sprintf("block %s: %s", name.Name, reason))
			}
		}
		for _, name := range schedulesOf(rules[i : i+1]) {
			if problem := l.scheduleProblem(name, manager); problem != "" {
				statuses = addProblem(statuses, rule, problem)
			}
		}
		if _, _, err := pace.Of(0, "", rules[i:i+1], l.algorithm); err != nil {
			statuses = addProblem(statuses, rule, err.Error())
		}
	}
	return statuses
}

func (l *loadedBlocks) scheduleProblem(name chains.BlockName, manager v1alpha1.SubflowManager) string {
	switch {
	case name.Name == v1alpha1.StrategyEarliestCompletionFirst && manager != v1alpha1.SubflowManagerAgent:
		return fmt.Sprintf("%s needs subflows.manager: Agent in the pod's policy", name.Name)
	case name.Name == v1alpha1.StrategyEarliestCompletionFirst || l.schedules[name] || l.refused[name] != nil:
		return ""
	}
	return fmt.Sprintf("no schedule %s is loaded on this node", name.Name)
}

func blocksOf(rule *v1alpha1.PlanRule) (names []chains.BlockName) {
	for _, action := range rule.Actions {
		switch {
		case action.RunProgram != nil:
			names = append(names, chains.BlockOf(rule, action.RunProgram.Program))
		case action.Congestion != nil:
			names = append(names, chains.BlockOf(rule, action.Congestion.Algorithm))
		case action.Schedule != nil:
			names = append(names, chains.BlockOf(rule, action.Schedule.Strategy))
		}
	}
	return names
}

// ruleMessageLimit is what the API accepts, less room for the sign of a cut.
const ruleMessageLimit = 500

// addProblem adds to what a status says of a rule.
func addProblem(statuses []v1alpha1.RuleStatus, rule *v1alpha1.PlanRule, message string) []v1alpha1.RuleStatus {
	for i := range statuses {
		if status := &statuses[i]; status.Policy == rule.Policy && status.Name == rule.Name {
			status.Failed = true
			status.Message = shortenTo(ruleMessageLimit, strings.TrimPrefix(status.Message+"; "+message, "; "))
			return statuses
		}
	}
	return append(statuses, v1alpha1.RuleStatus{Policy: rule.Policy, Name: rule.Name, Failed: true, Message: shortenTo(ruleMessageLimit, message)})
}

// close lets go of the blocks; those in use go on.
func (o *ownBlocks) close() error {
	var failed error
	if o.manager != nil {
		failed = o.manager.Close()
		o.manager = nil
	}
	return errors.Join(failed, o.closeMaps())
}

func (o *ownBlocks) closeMaps() error {
	var failed error
	for _, m := range o.maps {
		if m != nil {
			failed = errors.Join(failed, m.Close())
		}
	}
	o.maps = nil
	return failed
}
