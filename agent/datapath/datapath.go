// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"
)

// Options of a datapath.
type Options struct {
	// PinPath is a directory on a BPF file system, for this node alone.
	PinPath string
	// FlowEntries is the number of flows that the node remembers; 0 for the
	// default of 131072. The least used ones make room for new ones, and go on
	// by the cluster network's route.
	FlowEntries uint32
	// Clsact attaches by filters also where the kernel knows TCX.
	Clsact bool
	Log    logr.Logger
}

// Datapath is the uplink half on the NICs of the calling thread's network
// namespace. It is not safe for concurrent use.
type Datapath struct {
	options  Options
	objects  *objects // nil while nothing is loaded
	attacher attacher
	// other is the way of attaching that is not used, until it is known that an
	// earlier agent left nothing attached that way.
	other attacher
}

// Open prepares the datapath. Nothing is loaded or attached before Apply gets a
// state with paths; what an earlier agent left attached stays.
func Open(options Options) *Datapath {
	return &Datapath{options: options}
}

func (d *Datapath) directory() string { return filepath.Join(d.options.PinPath, schema) }

func (d *Datapath) linkDirectory() string { return filepath.Join(d.directory(), "links") }

// Apply brings maps and programs to the state. Flows of endpoints that are gone
// return to the cluster network's route; all others keep their paths.
func (d *Datapath) Apply(state State) error {
	if err := state.validate(); err != nil {
		return err
	}
	if len(state.Paths) == 0 {
		return d.Remove()
	}
	if err := d.load(); err != nil {
		return err
	}
	if err := d.resolve(state.neighbours()); err != nil {
		return err
	}
	gone, err := d.writeMaps(state)
	if err != nil {
		return err
	}
	return errors.Join(d.attachTo(state.uplinks()), d.detachOther(), d.forget(gone))
}

// AttachMode is how programs are attached: "tcx", "clsact", or "" before the
// first state with paths.
func (d *Datapath) AttachMode() string {
	switch d.attacher.(type) {
	case tcx:
		return "tcx"
	case clsact:
		return "clsact"
	}
	return ""
}

// Close lets go of the datapath without changing it: programs and maps stay.
func (d *Datapath) Close() error {
	if d.objects == nil {
		return nil
	}
	err := d.objects.close()
	d.objects = nil
	return err
}

// Remove detaches all programs and removes everything pinned. It needs no
// earlier Apply, so it also removes what another agent left.
func (d *Datapath) Remove() error {
	var failed error
	for _, attacher := range []attacher{tcx{d.linkDirectory()}, clsact{}} {
		failed = errors.Join(failed, detachAll(attacher))
	}
	d.attacher, d.other = nil, nil
	return errors.Join(failed, releaseAllNeighbours(), removePins(d.options.PinPath), d.Close())
}

// detachOther detaches what an earlier agent attached in the other way, after
// this one took over.
func (d *Datapath) detachOther() error {
	if d.other == nil {
		return nil
	}
	if err := detachAll(d.other); err != nil {
		return err
	}
	d.other = nil
	return nil
}

func detachAll(attacher attacher) error {
	attached, failed := attacher.attached()
	for index := range attached {
		failed = errors.Join(failed, attacher.detach(index))
	}
	return failed
}

// load loads the programs once. Pinned maps of another size or layout cannot be
// used: their flows are given up, which leaves those packets to the routes.
func (d *Datapath) load() error {
	if d.objects != nil {
		return nil
	}
	loaded, err := loadObjects(d.directory(), d.options.FlowEntries)
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		d.options.Log.Info("pinned maps do not fit this version, beginning anew", "reason", err.Error())
		if err := d.Remove(); err != nil {
			return err
		}
		loaded, err = loadObjects(d.directory(), d.options.FlowEntries)
	}
	if err != nil {
		return err
	}
	d.objects = loaded
	return d.chooseAttacher()
}

func (d *Datapath) chooseAttacher() error {
	supported, err := supportsTCX(d.objects.fromUplink.FromUplink)
	if err != nil {
		return err
	}
	d.attacher, d.other = attacher(clsact{}), attacher(tcx{d.linkDirectory()})
	if supported && !d.options.Clsact {
		d.attacher, d.other = d.other, d.attacher
	}
	return nil
}

// attachTo attaches to exactly these NICs. One that fails does not keep the
// others from working.
func (d *Datapath) attachTo(uplinks map[int]bool) error {
	attached, failed := d.attacher.attached()
	for index := range uplinks {
		for _, hook := range hooks {
			if err := d.attacher.attach(index, hook, hook.program(d.objects)); err != nil {
				failed = errors.Join(failed, err)
			}
		}
	}
	for index := range attached {
		if !uplinks[index] {
			failed = errors.Join(failed, d.attacher.detach(index))
		}
	}
	if failed != nil {
		return fmt.Errorf("attaching to the uplinks: %w", failed)
	}
	return nil
}
