// SPDX-License-Identifier: Apache-2.0

// Package announcements has the addresses that pods announce wait until their
// connections last: a connection that stays short costs no further subflow. And it has
// the pods' kernels answer a peer's join only when that is finished: data that came before
// would be misplaced. What it makes is pinned, and goes on while no agent runs.
package announcements

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/entries"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pins"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/announcements"
)

// schema is the version of everything pinned: see docs/upgrade.md.
const schema = "v1"

// Options of a Holder.
type Options struct {
	// PinPath is the agent's directory on a BPF file system.
	PinPath string
	// Clsact attaches by filters also where the kernel knows TCX.
	Clsact bool
	Log    logr.Logger
}

// Holder is the node.Part that holds announcements and answers to joins, on the
// interfaces of the calling thread's network namespace.
type Holder struct {
	node.Idle
	interfaces *attach.Interfaces

	mutex  sync.Mutex
	loaded *pins.Loaded[*objects]
	rooms  map[string]uint32 // the key of each tenant's

	log      logr.Logger
	watchers watchers
	telling  map[uint32]bool // the interfaces of which the program can tell
}

// objects are what is loaded, and the reader of what the program tells.
type objects struct {
	announcements.HoldObjects
	told *ringbuf.Reader
}

func (o *objects) Close() error {
	var failed error
	if o.told != nil {
		failed = o.told.Close()
	}
	return errors.Join(failed, o.HoldObjects.Close())
}

// The program is before those that may end the hook.
var hooks = []attach.Hook{{Name: "hold_addresses", Type: ebpf.AttachTCXIngress, Anchor: link.Head, Handle: 5}}

// Open prepares. Nothing is loaded or attached before Apply gets something to hold;
// what an earlier agent left attached stays.
func Open(options Options) *Holder {
	h := &Holder{log: options.Log}
	h.loaded = pins.NewLoaded(pins.New(filepath.Join(options.PinPath, "announcements"), schema, options.Log), h.load)
	h.interfaces = attach.New(attach.Options{LinkDirectory: filepath.Join(h.loaded.Directory(), "links"), Hooks: hooks, Clsact: options.Clsact})
	return h
}

// load loads the program. What is held lies with the sockets, in the pinned map.
func (h *Holder) load() (*objects, error) {
	spec, err := announcements.LoadHold()
	if err != nil {
		return nil, fmt.Errorf("reading the program that holds announcements: %w", err)
	}
	for name, m := range spec.Maps {
		if name != "scratch" && name != "told_interfaces" && name[0] != '.' {
			m.Pinning = ebpf.PinByName
		}
	}
	if err := h.loaded.Prepare(pins.Maps{Kept: pins.ByName(spec)}); err != nil {
		return nil, err
	}
	o := &objects{}
	if err := spec.LoadAndAssign(&o.HoldObjects, &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: h.loaded.Directory()}}); err != nil {
		return nil, fmt.Errorf("loading the program that holds announcements: %w", err)
	}
	if o.told, err = ringbuf.NewReader(o.ToldInterfaces); err != nil {
		return nil, errors.Join(fmt.Errorf("reading what the program tells: %w", err), o.Close())
	}
	if err := h.interfaces.Choose(o.HoldAddresses); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	go h.watchers.receive(o.told)
	return o, nil
}

// Apply puts the program at all pods of the model. What fails for one of them leaves it
// as it is without Braid: it is tried again. The program is there as long as the node has
// paths, though there are no pods: the verifier takes 0.1 s for it, and each pod of the
// round would wait for that.
func (h *Holder) Apply(_ context.Context, model *node.Model) (report node.Report) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	wanted := waitsOf(model)
	if len(wanted) == 0 && len(model.Paths) == 0 {
		if h.loaded.Exists() {
			report.Err = h.remove()
		}
		return report
	}
	if report.Err = h.loaded.Load(); report.Err != nil {
		if errors.Is(report.Err, pins.ErrRefused) {
			report.Err = nil // Feature says it, and all is as without Braid
		}
		return report
	}
	report.Err = h.write(wanted)
	h.attach(wanted, &report)
	report.Err = errors.Join(report.Err, h.detachOthers(wanted))
	if report.Err == nil {
		report.Err = h.loaded.Finish()
	}
	return report
}

// attach puts the program at the interfaces, and notes at which it is.
func (h *Holder) attach(wanted map[uint32]wait, report *node.Report) {
	h.telling = map[uint32]bool{}
	seen := attach.Look()
	for index, one := range wanted {
		err := h.interfaces.Ensure(seen, int(index), h.loaded.Value.HoldAddresses)
		report.Fail(one.owner, err)
		h.telling[index] = err == nil && report.Err == nil && !one.isNone()
	}
}

// wait is what the connections of an endpoint wait for, on one of its interfaces.
type wait struct {
	announcements.HoldWait
	owner  types.UID
	tenant string
}

// isNone: announcements go out at once, nothing is told, and answers to joins alone are kept back.
func (w *wait) isNone() bool { return w.Bytes == 0 && w.Time == 0 }

// waitsOf are those of a model's pods, by their interfaces. A VM's packets come without
// its sockets.
func waitsOf(model *node.Model) map[uint32]wait {
	waits := map[uint32]wait{}
	for i := range model.Endpoints {
		endpoint := &model.Endpoints[i]
		if endpoint.HasGuest() {
			continue
		}
		one := waitOf(endpoint)
		for _, index := range endpoint.Interfaces() {
			if _, shared := waits[uint32(index)]; !shared || !one.isNone() {
				waits[uint32(index)] = one
			}
		}
	}
	return waits
}

// opening are the managers by which connections get further subflows.
var opening = []v1alpha1.SubflowManager{v1alpha1.SubflowManagerKernel, v1alpha1.SubflowManagerAgent}

func waitOf(endpoint *node.Endpoint) wait {
	subflows := &endpoint.Subflows
	bytes, millis, tells := subflows.AnnounceAfterBytes, subflows.AnnounceAfterMillis, uint32(0)
	if subflows.Manager == v1alpha1.SubflowManagerAgent && subflows.OpenAfterBytes+subflows.OpenAfterMillis > 0 {
		bytes, millis, tells = subflows.OpenAfterBytes, subflows.OpenAfterMillis, announcements.AgentOpens
	}
	if subflows.Count > 1 && slices.Contains(opening, subflows.Manager) {
		tells |= announcements.MayBeJoined
	}
	return wait{owner: endpoint.UID, tenant: endpoint.Namespace, HoldWait: announcements.HoldWait{
		Bytes: uint64(bytes), Time: uint64(millis) * uint64(time.Millisecond), Tells: tells,
	}}
}

func (h *Holder) write(wanted map[uint32]wait) error {
	waits := h.loaded.Value.Waits
	failed := h.assignRooms(wanted)
	for index, one := range wanted {
		h.keepTells(index, &one.HoldWait)
		failed = errors.Join(failed, waits.Put(index, &one.HoldWait))
	}
	failed = errors.Join(failed, entries.Forget(waits, func(index uint32) bool {
		_, stays := wanted[index]
		return !stays
	}))
	if failed != nil {
		return fmt.Errorf("writing what connections wait for: %w", failed)
	}
	return nil
}

func (h *Holder) detachOthers(wanted map[uint32]wait) error {
	return h.interfaces.DetachOthers(func(index int) bool {
		_, stays := wanted[uint32(index)]
		return stays
	})
}

// Feature is what is known of the kernel; nil as long as nothing was loaded.
func (h *Holder) Feature() *v1alpha1.KernelFeature {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	feature := &v1alpha1.KernelFeature{Name: "HoldAnnouncements", Supported: h.loaded.Is()}
	if refused := h.loaded.Refused(); refused != nil {
		feature.Message = node.Shorten(node.MessageLimit, "answers to joins are not kept back, and with manager: Kernel addresses are announced at once, whatever openAfter says: "+refused.Error())
	} else if !feature.Supported {
		return nil
	}
	return feature
}

// Close lets go of everything without changing it: what is held stays held.
func (h *Holder) Close() error {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return h.loaded.Close()
}

// Remove detaches the program and removes everything pinned. What was held is lost:
// the agent's path manager helps the connections that lack subflows.
func (h *Holder) Remove(context.Context) error {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return h.remove()
}

func (h *Holder) remove() error { return h.loaded.Remove(h.interfaces.Remove) }
