// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/endpoints/namespace"
)

// sweep brings the sockets that exist in a network namespace to what the maps
// say. A namespace that is gone has none.
func (p *Pacer) sweep(path string) error {
	if p.objects.existing == nil {
		return nil
	}
	return namespace.IterateSocketsAt(path, p.objects.existing)
}

func (p *Pacer) sweepIn(file *os.File) error {
	if p.objects.existing == nil {
		return nil
	}
	return namespace.IterateSockets(file, p.objects.existing)
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
// name or a process: an earlier agent governed them.
func (p *Pacer) sweepUnknown(cookies map[uint64]bool) error {
	refused, err := namespace.Search(cookies, p.options.NamespaceDirectories, cmp.Or(p.options.Proc, "/proc"), p.sweepIn)
	if refused > 0 {
		p.options.Log.Info("failed to look at some network namespaces; sockets there may stay paced", "files", refused)
	}
	return err
}
