// SPDX-License-Identifier: Apache-2.0

// Package atnic has NICs drop at their XDP hook what the rules of pods would drop at the
// pods' interfaces, as far as a packet alone tells that: before the kernel makes anything of
// a frame. Where that cannot be, the rules act where they do without it.
package atnic

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

// Chains are those whose rules run at the NICs.
type Chains interface {
	// Endpoints have a chain.
	Endpoints() []chains.Attached
	// Map opens one of the maps of chains; nil while there are none.
	Map(name string) (*ebpf.Map, error)
}

// Options of a Part.
type Options struct {
	// PinPath is the agent's directory on a BPF file system.
	PinPath string
	// Native: the part is to do something.
	Native bool
	Chains Chains
	// Notify is called when there is more to say of NICs.
	Notify func()
	Log    logr.Logger
}

// Part has at_nic on the NICs of paths.
type Part struct {
	node.Idle
	options Options
	hook    attach.NativeXDP

	mutex   sync.Mutex
	objects objects
	nics    map[int]nic // by interface
	// For who does not wait for Apply.
	published atomic.Pointer[map[string]v1alpha1.NodePathXDP]
}

var _ node.Part = (*Part)(nil)

// nic is what became of one.
type nic struct {
	path, name string
	state      v1alpha1.XDPState
	message    string
	program    *ebpf.Program
	tried      time.Time
}

// Open prepares; nothing is done before Apply.
func Open(options Options) *Part {
	return &Part{options: options, hook: attach.NativeXDP{Directory: filepath.Join(options.PinPath, "at_nic", "links")}}
}

const (
	// again is how long what was seen of a NIC holds,
	again = 20 * time.Second
	// againRefused that its driver refuses: some are set up anew for each try.
	againRefused = 5 * time.Minute
)

// Apply brings the NICs of paths to what is asked for. A NIC that refuses is no failure: its
// packets meet the rules later.
func (p *Part) Apply(_ context.Context, model *node.Model) (report node.Report) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if !p.options.Native {
		report.Err = p.remove()
		return report
	}
	report.Err = p.apply(model)
	p.publish()
	return report
}

func (p *Part) apply(model *node.Model) error {
	nics := model.NICs()
	if len(nics) == 0 {
		return p.remove()
	}
	program, err := p.objects.choose(p.options.Chains)
	if err != nil {
		return p.refuseAll(nics, err)
	}
	wanted, all := map[int]bool{}, map[int]nic{}
	failed := p.objects.write(nics, reachedOf(model, p.options.Chains.Endpoints()))
	for _, path := range nics {
		wanted[path.Interface] = true
		all[path.Interface] = p.attach(path, program)
	}
	p.nics = all
	return errors.Join(failed, p.hook.DetachOthers(func(index int) bool { return wanted[index] }))
}

// refuseAll: a kernel that does not take the program runs none of it anywhere.
func (p *Part) refuseAll(nics []node.Path, err error) error {
	p.nics = map[int]nic{}
	for _, path := range nics {
		p.nics[path.Interface] = nic{path: path.Name, name: path.Found.NIC.Name, state: v1alpha1.XDPFailed, message: node.Shorten(node.MessageLimit, err.Error())}
	}
	return errors.Join(err, p.hook.DetachOthers(func(int) bool { return false }))
}

// attach says what became of a NIC.
func (p *Part) attach(path node.Path, program *ebpf.Program) nic {
	before, is := p.nics[path.Interface], nic{path: path.Name, name: path.Found.NIC.Name, program: program, tried: time.Now()}
	if before.holds(&is) {
		before.path = is.path
		return before
	}
	err := p.hook.Attach(path.Interface, program)
	is.state = stateOf(err)
	if err == nil {
		return is
	}
	is.message = node.Shorten(node.MessageLimit, err.Error())
	if before.state != is.state || before.message != is.message {
		p.options.Log.Info("rules act at TC for what comes in by a NIC, and not at its XDP hook", "nic", is.name, "reason", is.state, "message", is.message)
	}
	return is
}

// holds: there is nothing to be done anew.
func (n *nic) holds(is *nic) bool {
	since := is.tried.Sub(n.tried)
	switch {
	case n.name != is.name:
		return false
	case n.state == v1alpha1.XDPUnsupported || n.state == v1alpha1.XDPFailed:
		return since < againRefused
	}
	return n.program == is.program && since < again
}

func stateOf(err error) v1alpha1.XDPState {
	switch {
	case err == nil:
		return v1alpha1.XDPNative
	case errors.Is(err, attach.ErrUnsupported):
		return v1alpha1.XDPUnsupported
	case errors.Is(err, attach.ErrOccupied):
		return v1alpha1.XDPOccupied
	}
	return v1alpha1.XDPFailed
}

// publish has the node's status say what became of the paths' NICs.
func (p *Part) publish() {
	shown := map[string]v1alpha1.NodePathXDP{}
	for _, is := range p.nics {
		shown[is.path] = v1alpha1.NodePathXDP{State: is.state, Message: is.message}
	}
	before := p.published.Swap(&shown)
	if (before == nil || !maps.Equal(*before, shown)) && p.options.Notify != nil {
		p.options.Notify()
	}
}

// DescribePath adds what is known of a path's NIC to what the node's status says of it.
func (p *Part) DescribePath(path *v1alpha1.NodePath) {
	all := p.published.Load()
	if all == nil || path.Interface == "" {
		return
	}
	if shown, known := (*all)[string(path.Name)]; known {
		path.XDP = &shown
	}
}

// Remove takes the program off all NICs.
func (p *Part) Remove(context.Context) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.remove()
}

func (p *Part) remove() error {
	p.nics = nil
	if err := errors.Join(p.hook.Remove(), removeEmpty(filepath.Dir(p.hook.Directory)), p.objects.close()); err != nil {
		return fmt.Errorf("failed to take the program off the XDP hooks of NICs: %w", err)
	}
	return nil
}

// Close leaves what is attached where it is.
func (p *Part) Close() error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.objects.close()
}

func removeEmpty(directory string) error {
	if err := os.Remove(directory); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
