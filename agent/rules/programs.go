// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pace"
	"braid.dev/braid/agent/programs"
	"braid.dev/braid/api/v1alpha1"
)

// adminPrograms loads the programs of admins' own that the plan's chains refer to.
type adminPrograms struct {
	node.Idle
	chains     *chains.Chains
	pins       string // where the endpoint half's maps are pinned
	directory  string // of programs as files
	configMaps programs.ConfigMaps
	log        logr.Logger

	manager *programs.Manager // nil while there are none
	maps    []*ebpf.Map       // the manager's
	looked  bool              // for those of an earlier agent
	loaded  loadedPrograms
}

// Apply only logs what failed: rules of which a program is missing say so.
func (p *adminPrograms) Apply(ctx context.Context, model *node.Model) (report node.Report) {
	if err := p.apply(ctx, model); err != nil {
		p.log.Error(err, "failed to load, or to remove, some of the programs that rules run")
	}
	return report
}

func (p *adminPrograms) apply(ctx context.Context, model *node.Model) error {
	p.loaded = loadedPrograms{}
	var wanted []v1alpha1.PlanProgram
	if wantsChains(model) {
		wanted = model.Plan.Spec.Programs
	}
	if !p.isNeeded(wanted) {
		return nil
	}
	if err := p.open(); err != nil {
		return fmt.Errorf("preparing for programs: %w", err)
	}
	result, err := p.manager.Apply(ctx, wanted)
	p.looked, p.loaded = true, loadedOf(wanted, result)
	if len(wanted) == 0 {
		err = errors.Join(err, p.Close())
	}
	return err
}

// isNeeded is false where there is nothing to load, nor to remove.
func (p *adminPrograms) isNeeded(wanted []v1alpha1.PlanProgram) bool {
	if len(wanted) > 0 || p.manager != nil {
		return true
	}
	_, err := os.Stat(p.pins)
	return !p.looked && err == nil
}

func (p *adminPrograms) open() error {
	if p.manager != nil {
		return nil
	}
	if err := p.chains.Prepare(); err != nil {
		return err
	}
	for _, name := range []string{"custom_blocks", "block_context"} {
		opened, err := p.chains.Map(name)
		if err != nil {
			return errors.Join(err, p.Close())
		}
		p.maps = append(p.maps, opened)
	}
	cgroup, err := pace.CgroupRoot()
	if err != nil {
		p.log.Info("failed to find a cgroup to attach schedulers to; programs of type Schedule are not used", "reason", err.Error())
	}
	p.manager = programs.NewManager(programs.Options{
		PinPath: p.pins, CustomBlocks: p.maps[0], BlockContext: p.maps[1],
		Cgroup: cgroup, Directory: p.directory, ConfigMaps: p.configMaps, Log: p.log,
	})
	return nil
}

// slots tells chains which programs they can run, and why not others.
func (p *adminPrograms) slots() (map[chains.ProgramName]uint32, map[chains.ProgramName]error) {
	return p.loaded.slots, p.loaded.refused
}

// Remove leaves the programs to the pins of the chains, where they are.
func (p *adminPrograms) Remove(context.Context) error { return p.Close() }

// Close lets go of the programs; those in use go on.
func (p *adminPrograms) Close() (failed error) {
	if p.manager != nil {
		failed = p.manager.Close()
		p.manager = nil
	}
	for _, m := range p.maps {
		if m != nil {
			failed = errors.Join(failed, m.Close())
		}
	}
	p.maps = nil
	return failed
}

// loadedPrograms are the programs in use, and why others are not.
type loadedPrograms struct {
	slots      map[chains.ProgramName]uint32
	algorithms map[chains.ProgramName]string
	schedules  map[chains.ProgramName]bool
	refused    map[chains.ProgramName]error
}

func loadedOf(wanted []v1alpha1.PlanProgram, result programs.Result) loadedPrograms {
	l := loadedPrograms{
		slots: map[chains.ProgramName]uint32{}, algorithms: map[chains.ProgramName]string{},
		schedules: map[chains.ProgramName]bool{}, refused: map[chains.ProgramName]error{},
	}
	for i := range wanted {
		name := chains.ProgramName{Policy: wanted[i].Policy, Name: wanted[i].Name}
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

// algorithm is the kernel's name of a congestion control, which may be a program's.
func (l *loadedPrograms) algorithm(rule *v1alpha1.PlanRule, name string) string {
	if algorithm, ok := l.algorithms[chains.ProgramOf(rule, name)]; ok {
		return algorithm
	}
	return name
}
