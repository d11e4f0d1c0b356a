// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/endpoints/namespace"
)

// sweep brings the sockets that exist in a network namespace to what the maps
// say. A namespace that is gone has none.
func (p *Pacer) sweep(path string) error {
	if p.objects.existing == nil {
		return nil
	}
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening a network namespace: %w", err)
	}
	defer file.Close()
	return p.sweepIn(file)
}

func (p *Pacer) sweepIn(file *os.File) error {
	var sockets io.ReadCloser
	// The iterator belongs to the namespace of the thread that opens it.
	err := namespace.Do(file, func() (err error) {
		sockets, err = p.objects.existing.Open()
		return err
	})
	if err != nil {
		return fmt.Errorf("opening the iterator over sockets in %s: %w", file.Name(), err)
	}
	defer sockets.Close()
	if _, err := io.Copy(io.Discard, sockets); err != nil {
		return fmt.Errorf("going over the sockets in %s: %w", file.Name(), err)
	}
	return nil
}

// release lets namespaces go and puts their sockets back as they were. Where there
// is no iterator, sockets that send do so themselves within a round trip.
func (p *Pacer) release(cookies []uint64) error {
	var failed error
	unknown := map[uint64]bool{}
	for _, cookie := range cookies {
		if err := p.objects.endpoints.Delete(cookie); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			failed = errors.Join(failed, fmt.Errorf("releasing the sockets of a network namespace: %w", err))
		}
		if endpoint, ok := p.endpoints[cookie]; ok {
			failed = errors.Join(failed, p.sweep(endpoint.Path))
		} else {
			unknown[cookie] = true
		}
	}
	return errors.Join(failed, p.sweepUnknown(unknown))
}

// sweepUnknown looks for the namespaces with these cookies among all that have a
// name or a process: an earlier agent governed them. What is not found is gone,
// unless some of them may not be looked at.
func (p *Pacer) sweepUnknown(cookies map[uint64]bool) error {
	var failed error
	refused, seen := 0, map[uint64]bool{}
	for _, path := range p.namespaces() {
		if len(cookies) == 0 {
			break
		}
		err := p.sweepIf(path, cookies, seen)
		switch {
		case errors.Is(err, os.ErrPermission):
			refused++
		case err != nil && !isGone(err):
			failed = errors.Join(failed, err)
		}
	}
	if refused > 0 && len(cookies) > 0 {
		p.options.Log.Info("failed to look at some network namespaces; sockets there may stay paced", "files", refused)
	}
	return failed
}

// sweepIf sweeps the namespace at this path, once, if its cookie is among these.
func (p *Pacer) sweepIf(path string, cookies, seen map[uint64]bool) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening a network namespace: %w", err)
	}
	defer file.Close()
	var status unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &status); err != nil {
		return fmt.Errorf("looking at %s: %w", path, err)
	}
	if seen[status.Ino] {
		return nil
	}
	seen[status.Ino] = true
	identity, err := namespace.Identify(file)
	if err != nil || !cookies[identity.Cookie] {
		return err
	}
	delete(cookies, identity.Cookie)
	if p.objects.existing == nil {
		return nil
	}
	return p.sweepIn(file)
}

func (p *Pacer) namespaces() (paths []string) {
	for _, directory := range p.options.NamespaceDirectories {
		found, _ := filepath.Glob(filepath.Join(directory, "*")) // the pattern is valid
		paths = append(paths, found...)
	}
	processes, _ := filepath.Glob(filepath.Join(cmp.Or(p.options.Proc, "/proc"), "[0-9]*", "ns", "net"))
	return append(paths, processes...)
}

// isGone tells errors of files that vanished or never were namespaces.
func isGone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL)
}
