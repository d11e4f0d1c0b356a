// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pins"
	"braid.dev/braid/api/v1alpha1"
)

// Chains are the endpoint half on the interfaces of the calling thread's network
// namespace. Apply and Remove must be called from there; all methods may be called
// from several goroutines.
type Chains struct {
	node.Idle
	options    Options
	interfaces *attach.Interfaces

	mu     sync.Mutex
	loaded *pins.Loaded[*half]
	// For who does not wait for Apply.
	attached atomic.Pointer[[]Attached]
	feature  atomic.Pointer[v1alpha1.KernelFeature]
}

var _ node.Part = (*Chains)(nil)

// The two hooks of each interface. What the endpoint sends is seen first, before
// the cluster network's programs send it elsewhere or end the run; what it receives
// is seen last, as it reaches the endpoint.
var hooks = []attach.Hook{
	{Name: "from_endpoint", Type: ebpf.AttachTCXIngress, Anchor: link.Head, Handle: 2},
	{Name: "to_endpoint", Type: ebpf.AttachTCXEgress, Anchor: link.Tail, Handle: 2},
}

// Open prepares the endpoint half. Nothing is loaded or attached before Apply gets
// an endpoint with a chain; what an earlier agent left attached stays.
func Open(options Options) *Chains { return open(options, schema) }

func open(options Options, version string) *Chains {
	c := &Chains{options: options}
	pinned := pins.New(options.PinPath, version, options.Log)
	c.interfaces = attach.New(attach.Options{
		LinkDirectory: filepath.Join(pinned.Directory(), "links"), Hooks: hooks, Clsact: options.Clsact,
	})
	c.loaded = pins.NewLoaded(pinned, func() (*half, error) { return loadHalf(pinned, c.interfaces, options) })
	c.attached.Store(&[]Attached{})
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
// are kept. An endpoint that has no chain any more first gets one without rules,
// until what its rules did to subflows is undone, and then loses the programs: until
// then the report says that this is unfinished, and the endpoint's number must not be
// given to another. Without endpoints nothing stays loaded.
func (c *Chains) Apply(_ context.Context, model *node.Model) (report node.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	failed := failures{}
	report.Unfinished, report.Err = c.apply(model, failed)
	for i := range model.Endpoints {
		if endpoint := &model.Endpoints[i]; endpoint.Chain != "" && endpoint.Found != nil {
			report.Fail(endpoint.UID, errors.Join(failed[endpoint.UID], report.Err))
		}
	}
	return report
}

// apply says whether endpoints are draining.
func (c *Chains) apply(model *node.Model, failed failures) (draining bool, err error) {
	wanted := desiredOf(model, failed)
	if len(wanted) == 0 && !c.loaded.Exists() {
		return false, nil
	}
	if err := c.load(); err != nil {
		return false, c.withoutPrograms(wanted, failed, err)
	}
	h := c.loaded.Value
	err = h.apply(model, wanted, failed)
	if err == nil {
		err = c.loaded.Finish()
	}
	c.publish(h.list())
	if err == nil && len(h.endpoints) == 0 {
		return false, c.remove()
	}
	return h.isDraining(), err
}

// withoutPrograms fails the endpoints alone where the verifier refuses the programs: no
// other try would end otherwise. What an earlier agent left goes with the last of them.
func (c *Chains) withoutPrograms(wanted []desired, failed failures, err error) error {
	if !errors.Is(err, pins.ErrRefused) {
		return err
	}
	if len(wanted) == 0 {
		return c.remove()
	}
	for i := range wanted {
		failed.add(wanted[i].UID, err)
	}
	return nil
}

// load loads once, and takes note of what the kernel can.
func (c *Chains) load() error {
	err := c.loaded.Load()
	feature := &v1alpha1.KernelFeature{Name: "Rules", Supported: err == nil}
	if errors.Is(err, pins.ErrRefused) {
		feature.Message = node.Shorten(node.MessageLimit, "rules that act on packets cannot be carried out: "+err.Error())
	}
	if feature.Supported || feature.Message != "" {
		c.feature.Store(feature)
	}
	return err
}

// Feature is what is known of the kernel; nil as long as no endpoint had rules. It waits
// for nobody.
func (c *Chains) Feature() *v1alpha1.KernelFeature { return c.feature.Load() }

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
	if !c.loaded.Exists() {
		return nil
	}
	if err := c.load(); !errors.Is(err, pins.ErrRefused) {
		return err
	}
	return nil // Apply says it of the endpoints that it concerns
}

// Exists says whether this agent or an earlier one left something.
func (c *Chains) Exists() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.loaded.Exists()
}

// Close lets go of everything without changing it: programs and maps stay.
func (c *Chains) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.publish(nil)
	return c.loaded.Close()
}

// Remove detaches all programs and removes everything pinned, without waiting for
// anything to be undone.
func (c *Chains) Remove(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.remove()
}

func (c *Chains) remove() error {
	c.publish(nil)
	return c.loaded.Remove(c.interfaces.Remove)
}
