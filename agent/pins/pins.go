// SPDX-License-Identifier: Apache-2.0

// Package pins keeps what agents leave on a BPF file system: maps and links, in a
// directory for each version of their layout. An agent that finds those of another
// version, older or newer, takes over what fits and copies what does not, so that
// connections go on as they are.
package pins

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"
)

// DefaultPath is the directory of all that an agent pins, unless it is told another.
const DefaultPath = "/sys/fs/bpf/braid"

// variant is added to each version. Tests build agents with one, to upgrade from
// and to a version that differs; those copy all maps, as if no layout fitted.
var variant string

// The ends of names of directories that are no version's: one that is being made,
// and one whose maps do not fit although it has this version's name. BPF file
// systems allow no dots.
const (
	unfinished = "_new"
	misfit     = "_old"
)

// Pins are those of one part of the datapath. They are not safe for concurrent use.
type Pins struct {
	root, version string
	log           logr.Logger
	copies        []copied
	// others says that there may be directories of other versions.
	others bool
}

// New is of the directory root on a BPF file system, which is for one part of the
// datapath alone. version names the layout and the meaning of all that is pinned.
func New(root, version string, log logr.Logger) *Pins {
	return &Pins{root: root, version: version + variant, log: log}
}

// Directory is that of this version.
func (p *Pins) Directory() string { return filepath.Join(p.root, p.version) }

// Maps are those that a part of the datapath pins by their names.
type Maps struct {
	// Kept outlive a change of version: they are shared where their layouts are
	// equal, and else copied, member by member of the same name.
	Kept []*ebpf.MapSpec
	// Fresh are made anew by each version, because they mean something only with
	// others, or for a moment.
	Fresh []*ebpf.MapSpec
}

// Prepare makes the directory, in which then lie no maps that do not fit. What was
// pinned there by agents of another version, links above all, is there afterwards:
// to give a link its new program replaces the old one in one step. Finish is to be
// called when that is done.
func (p *Pins) Prepare(maps Maps) error {
	if err := os.MkdirAll(p.root, 0o700); err != nil {
		return fmt.Errorf("making the directory of pins: %w", err)
	}
	if err := p.setAside(maps); err != nil {
		return err
	}
	others, err := p.otherDirectories()
	if err != nil {
		return err
	}
	p.others = len(others) > 0
	if err := p.make(others, maps); err != nil {
		return err
	}
	for _, other := range others {
		if err := moveAll(other, p.Directory(), maps.names()); err != nil {
			return fmt.Errorf("taking over what another version pinned: %w", err)
		}
	}
	return nil
}

// ByName are the maps of a program's specification that are pinned by their names.
func ByName(spec *ebpf.CollectionSpec) (maps []*ebpf.MapSpec) {
	for _, m := range spec.Maps {
		if m.Pinning == ebpf.PinByName {
			maps = append(maps, m)
		}
	}
	return maps
}

func (m *Maps) names() map[string]bool {
	names := map[string]bool{}
	for _, spec := range slices.Concat(m.Kept, m.Fresh) {
		names[spec.Name] = true
	}
	return names
}

// setAside gives this version's directory another name where a map in it does not
// fit, as when an agent was told another size.
func (p *Pins) setAside(maps Maps) error {
	for _, spec := range slices.Concat(maps.Kept, maps.Fresh) {
		reason, err := p.misfit(spec)
		if err != nil {
			return err
		}
		if reason == nil {
			continue
		}
		p.log.Info("a pinned map does not fit this version, copying what it holds", "map", spec.Name, "reason", reason.Error())
		aside := p.Directory() + misfit
		if err := errors.Join(os.RemoveAll(aside), os.Rename(p.Directory(), aside)); err != nil {
			return fmt.Errorf("setting pins aside: %w", err)
		}
		return nil
	}
	return nil
}

// misfit is why a pinned map cannot be used; nil where it can, or is not there.
func (p *Pins) misfit(spec *ebpf.MapSpec) (reason, err error) {
	pinned, err := ebpf.LoadPinnedMap(filepath.Join(p.Directory(), spec.Name), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening the pinned map %s: %w", spec.Name, err)
	}
	defer pinned.Close()
	return fits(spec, pinned), nil
}

// otherDirectories are those of other versions, the one that was used last first.
func (p *Pins) otherDirectories() ([]string, error) {
	entries, err := os.ReadDir(p.root)
	if err != nil {
		return nil, fmt.Errorf("listing the directories of pins: %w", err)
	}
	var others []string
	changed := map[string]int64{}
	for _, entry := range entries {
		path := filepath.Join(p.root, entry.Name())
		switch {
		case !entry.IsDir() || entry.Name() == p.version:
			continue
		case strings.HasSuffix(entry.Name(), unfinished):
			if err := os.RemoveAll(path); err != nil {
				return nil, fmt.Errorf("removing what an agent began to make: %w", err)
			}
			continue
		}
		info, err := entry.Info()
		if err != nil {
			return nil, fmt.Errorf("looking at %s: %w", path, err)
		}
		others, changed[path] = append(others, path), info.ModTime().UnixNano()
	}
	slices.SortFunc(others, func(a, b string) int { return cmp.Compare(changed[b], changed[a]) })
	return others, nil
}

// make makes this version's directory, unless it is there, in one step: a directory
// with a version's name has all maps that could be kept.
func (p *Pins) make(others []string, maps Maps) error {
	if _, err := os.Stat(p.Directory()); err == nil || !errors.Is(err, os.ErrNotExist) {
		return err
	}
	directory := p.Directory() + unfinished
	if err := os.Mkdir(directory, 0o700); err != nil {
		return fmt.Errorf("making the directory of pins: %w", err)
	}
	if len(others) > 0 {
		p.log.Info("taking over from another version", "from", filepath.Base(others[0]), "version", p.version)
		if err := p.keepAll(others[0], directory, maps.Kept); err != nil {
			return err
		}
	}
	if err := os.Rename(directory, p.Directory()); err != nil {
		return fmt.Errorf("naming the directory of pins: %w", err)
	}
	return nil
}

// moveAll moves what the other directory has to this one, what is there already
// and the maps of these names excepted.
func moveAll(from, to string, except map[string]bool) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		source, target := filepath.Join(from, entry.Name()), filepath.Join(to, entry.Name())
		if except[entry.Name()] {
			continue
		}
		if entry.IsDir() {
			if err := errors.Join(os.MkdirAll(target, 0o700), moveAll(source, target, nil)); err != nil {
				return err
			}
			continue
		}
		if _, err := os.Lstat(target); err == nil {
			continue
		}
		if err := os.Rename(source, target); err != nil {
			return err
		}
	}
	return nil
}

// Finish forgets the other versions, after the programs of this one have taken the
// place of theirs.
func (p *Pins) Finish() error {
	if !p.others {
		return nil
	}
	failed := p.catchUp()
	others, err := p.otherDirectories()
	failed = errors.Join(failed, err)
	for _, other := range others {
		if err := os.RemoveAll(other); err != nil {
			failed = errors.Join(failed, fmt.Errorf("removing the pins of another version: %w", err))
		}
	}
	p.others = failed != nil
	return failed
}

// Close lets go of what Finish would need; pins stay.
func (p *Pins) Close() error {
	var failed error
	for _, c := range p.copies {
		failed = errors.Join(failed, c.from.Close(), c.to.Close())
	}
	p.copies = nil
	return failed
}
