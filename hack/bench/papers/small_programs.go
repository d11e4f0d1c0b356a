// SPDX-License-Identifier: Apache-2.0

package papers

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
)

// emptyProgram is the name of the one that does nothing.
const emptyProgram = "empty"

// smallPrograms are the packet programs of a network's nodes, by their names, while the kernel
// counts what they take. What else the machine does hardly changes that.
type smallPrograms struct {
	rig.Closers
	named map[string][]*ebpf.Program
	empty hooked
}

// programTime is what the kernel counts for programs.
type programTime struct{ ns, runs float64 }

// countSmallPrograms begins to count. An empty program at the host's end of the pod's interface tells what
// counting takes for each run.
func countSmallPrograms(on *network.Network, pod *network.Pod) (*smallPrograms, error) {
	p := &smallPrograms{named: map[string][]*ebpf.Program{}}
	if err := p.begin(on, pod); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *smallPrograms) begin(on *network.Network, pod *network.Pod) error {
	for _, node := range on.Nodes {
		if err := node.Do(p.findPrograms); err != nil {
			return err
		}
	}
	empty, err := p.LoadEmpty()
	if err != nil {
		return err
	}
	p.empty = hooked{empty, ebpf.AttachTCXIngress}
	attached, err := attachTo(pod, p.empty)
	if err != nil {
		return err
	}
	p.Own(attached)
	counting, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return fmt.Errorf("counting the programs' time: %w", err)
	}
	p.Own(counting)
	return nil
}

// findPrograms finds those of all interfaces of the calling thread's network namespace. One program
// may be at several.
func (p *smallPrograms) findPrograms() error {
	interfaces, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("listing interfaces: %w", err)
	}
	known := map[ebpf.ProgramID]bool{}
	for _, nic := range interfaces {
		for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			found, err := link.QueryPrograms(link.QueryOptions{Target: nic.Index, Attach: hook})
			if err != nil {
				return fmt.Errorf("listing the programs of %s: %w", nic.Name, err)
			}
			for _, one := range found.Programs {
				if known[one.ID] {
					continue
				}
				known[one.ID] = true
				if err := p.add(one.ID); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (p *smallPrograms) add(id ebpf.ProgramID) error {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return fmt.Errorf("opening program %d: %w", id, err)
	}
	p.Own(program)
	info, err := program.Info()
	if err != nil {
		return fmt.Errorf("asking for the name of program %d: %w", id, err)
	}
	p.named[info.Name] = append(p.named[info.Name], program)
	return nil
}

// read is what was counted so far, by the programs' names.
func (p *smallPrograms) read() (map[string]programTime, error) {
	times := map[string]programTime{}
	for name, programs := range p.named {
		for _, program := range programs {
			counted, err := program.Stats()
			if err != nil {
				return nil, fmt.Errorf("reading the time of %s: %w", name, err)
			}
			times[name] = programTime{times[name].ns + float64(counted.Runtime.Nanoseconds()), times[name].runs + float64(counted.RunCount)}
		}
	}
	counted, err := p.empty.program.Stats()
	if err != nil {
		return nil, fmt.Errorf("reading the time of an empty program: %w", err)
	}
	times[emptyProgram] = programTime{float64(counted.Runtime.Nanoseconds()), float64(counted.RunCount)}
	return times, nil
}

// programWays are those of which the programs' time is told: packets of pods that no policy selects meet
// programs too.
var programWays = smallWays[1:]

// measureSmallPrograms counts what the nodes' packet programs take for a small flow where there is no
// delay.
func measureSmallPrograms(ctx context.Context, m *rig.Measurement, _ rig.Nothing) error {
	place := smallPlaces[0]
	setup := func(ctx context.Context) (*rig.Lab, error) { return newSmallLab(ctx, place.network()) }
	return rig.Use(ctx, setup, func(l *rig.Lab) error {
		if err := l.Spread(ctx, "{}"); err != nil {
			return err
		}
		return withSmallFlows(ctx, l, programWays, func(flows map[string]*rig.Flows) error {
			for range m.Trials {
				for way := range rig.Shuffled(programWays) {
					if err := smallProgramTimes(ctx, m, l, way, flows[way.name], smallSizes(place.rounds/4)); err != nil {
						return fmt.Errorf("%s: %w", way.name, err)
					}
				}
			}
			return nil
		})
	})
}

// smallProgramTimes has a way's flows go one after another, and notes how long all programs of the
// nodes take for one of them, above empty ones, and how often they run.
func smallProgramTimes(ctx context.Context, m *rig.Measurement, l *rig.Lab, way smallWay, flows *rig.Flows, sizes []int64) (err error) {
	programs, err := countSmallPrograms(l.Network, l.Network.Pod(way.client))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, programs.Close()) }()
	before, err := programs.read()
	if err != nil {
		return err
	}
	if _, err := flows.Run(ctx, sizes, 1); err != nil {
		return err
	}
	after, err := programs.read()
	if err != nil {
		return err
	}
	addProgramTimes(m, "fct.small_programs."+way.name, before, after, float64(len(sizes)))
	return nil
}

func addProgramTimes(m *rig.Measurement, figure string, before, after map[string]programTime, flows float64) {
	empty := (after[emptyProgram].ns - before[emptyProgram].ns) / (after[emptyProgram].runs - before[emptyProgram].runs)
	all := programTime{}
	for name := range after {
		runs := (after[name].runs - before[name].runs) / flows
		if name == emptyProgram || runs == 0 {
			continue
		}
		ns := (after[name].ns-before[name].ns)/flows - runs*empty
		all = programTime{all.ns + ns, all.runs + runs}
		m.Add(figure+"."+name+"_us", ns/1000)
	}
	m.Add(figure+"_us", all.ns/1000)
	m.Add(figure+"_runs", all.runs)
}
