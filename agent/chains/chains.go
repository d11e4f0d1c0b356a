// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/pins"
)

// Chains are the endpoint half on the interfaces of the calling thread's network
// namespace. Apply and Remove must be called from there; all methods may be called
// from several goroutines.
type Chains struct {
	options    Options
	pins       *pins.Pins
	interfaces *attach.Interfaces

	mu      sync.Mutex
	objects *objects // nil while nothing is loaded
	book    *book    // nil while nothing is loaded
	clean   bool     // nothing is pinned, and nothing attached
	seen    atomic.Pointer[view]
}

// The two hooks of each interface. What the endpoint sends is seen first, before
// the cluster network's programs send it elsewhere or end the run; what it receives
// is seen last, as it reaches the endpoint.
var hooks = []attach.Hook{
	{Name: "from_endpoint", Type: ebpf.AttachTCXIngress, Anchor: link.Head, Handle: 2},
	{Name: "to_endpoint", Type: ebpf.AttachTCXEgress, Anchor: link.Tail, Handle: 2},
}

// Open prepares the endpoint half. Nothing is loaded or attached before Apply gets
// an endpoint; what an earlier agent left attached stays.
func Open(options Options) *Chains { return open(options, schema) }

func open(options Options, version string) *Chains {
	c := &Chains{options: options, pins: pins.New(options.PinPath, version, options.Log)}
	c.interfaces = attach.New(attach.Options{
		LinkDirectory: filepath.Join(c.pins.Directory(), "links"), Hooks: hooks, Clsact: options.Clsact,
	})
	c.seen.Store(&view{})
	return c
}

// AttachMode is how programs are attached: "tcx", "clsact", or "" while none is.
func (c *Chains) AttachMode() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.interfaces.Mode()
}

// Apply gives the endpoints their chains. A chain that is new or has changed takes
// the place of the old one in one step, and counters of rules that are the same
// are kept. An endpoint that is no longer there first gets a chain without rules,
// until what its rules did to subflows is undone, and then loses the programs:
// Apply must be called now and then for that. Without endpoints nothing stays
// loaded. The error is what concerns all endpoints.
func (c *Chains) Apply(state State) (Failures, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := state.validate(); err != nil {
		return nil, err
	}
	if len(state.Endpoints) == 0 && !c.hasSomething() {
		return nil, nil
	}
	if err := c.load(); err != nil {
		return nil, err
	}
	failures, err := c.apply(state)
	c.publish()
	if err == nil && len(c.book.endpoints) == 0 {
		err = c.remove()
	}
	return failures, err
}

// Prepare loads the programs and maps without attaching anything, for what must be
// there before the first chain is. What it loads stays until Apply finds no
// endpoint, or Remove.
func (c *Chains) Prepare() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.load()
}

// TakeOver brings here what an earlier agent of another version pinned, where there
// is something: links of others lie in the same directory.
func (c *Chains) TakeOver() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hasSomething() {
		return nil
	}
	return c.load()
}

// hasSomething is true when this agent or an earlier one left something.
func (c *Chains) hasSomething() bool {
	if c.objects != nil {
		return true
	}
	if !c.clean {
		_, err := os.Stat(c.options.PinPath)
		c.clean = errors.Is(err, os.ErrNotExist)
	}
	return !c.clean
}

func (c *Chains) apply(state State) (Failures, error) {
	slots, err := c.writePaths(state.Paths)
	if err != nil {
		return nil, err
	}
	failures := Failures{}
	wishes := compileAll(state.Endpoints, Surroundings{Paths: slots, Blocks: state.Blocks, Refused: state.Refused}, failures)
	if err := c.change(wishes, failures); err != nil {
		return failures, err
	}
	lifted, err := c.lift(state.Endpoints)
	if err != nil {
		return failures, err
	}
	c.attach(failures)
	err = errors.Join(c.collect(), c.drop(lifted), c.detachOthers())
	if err == nil {
		err = c.pins.Finish()
	}
	return failures, err
}

// load loads the programs once. What another version pinned is taken over.
func (c *Chains) load() error {
	if c.objects != nil {
		return nil
	}
	c.clean = false
	loaded, err := loadObjects(c.pins, c.options.SubflowEntries)
	if err != nil {
		return err
	}
	b, err := readBook(loaded)
	if err == nil {
		err = loaded.prepareEmpty()
	}
	if err == nil {
		err = c.interfaces.Choose(loaded.fromEndpoint)
	}
	if err != nil {
		return errors.Join(err, loaded.close())
	}
	c.objects, c.book = loaded, b
	return nil
}

// attach puts the programs on the interface of each endpoint. One that fails does
// not keep the others from working, and has none of the two rather than one.
func (c *Chains) attach(failures Failures) {
	before, err := c.interfaces.Attached()
	if err != nil {
		c.options.Log.Error(err, "it is not known which interfaces have programs")
	}
	for uid, a := range c.book.endpoints {
		err := c.interfaces.Attach(a.index(), c.objects.fromEndpoint, c.objects.toEndpoint)
		if err != nil && !before[a.index()] {
			err = errors.Join(err, c.interfaces.Detach(a.index()))
		}
		if a.lifted.IsZero() {
			failures.add(uid, err)
		}
	}
}

// detachOthers takes the programs off interfaces that have no chain.
func (c *Chains) detachOthers() error {
	wanted := map[int]bool{}
	for _, a := range c.book.endpoints {
		wanted[a.index()] = true
	}
	attached, failed := c.interfaces.Attached()
	for index := range attached {
		if !wanted[index] {
			failed = errors.Join(failed, c.interfaces.Detach(index))
		}
	}
	if failed != nil {
		return fmt.Errorf("detaching from interfaces without a chain: %w", failed)
	}
	return c.interfaces.DetachOther()
}

// Close lets go of everything without changing it: programs and maps stay.
func (c *Chains) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.close()
}

func (c *Chains) close() error {
	c.seen.Store(&view{})
	if c.objects == nil {
		return nil
	}
	err := errors.Join(c.objects.close(), c.pins.Close())
	c.objects, c.book = nil, nil
	return err
}

// Remove detaches all programs and removes everything pinned. It needs no earlier
// Apply, so it also removes what another agent left.
func (c *Chains) Remove() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.remove()
}

func (c *Chains) remove() error {
	failed := errors.Join(c.interfaces.Remove(), c.close())
	if err := os.RemoveAll(c.options.PinPath); err != nil {
		failed = errors.Join(failed, fmt.Errorf("removing pins: %w", err))
	}
	c.clean = failed == nil
	return failed
}
