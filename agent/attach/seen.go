// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"braid.dev/braid/bpf/attachments"
)

// Seen is what was attached at one moment, of all network namespaces, by the links' IDs.
// nil means that nothing is known.
type Seen map[link.ID]attachments.ListAttachment

// lister goes over all links. It is loaded when it is first used and lives as long as the
// process, as it belongs to no part.
var lister = sync.OnceValues(func() (*link.Iter, error) {
	var loaded attachments.ListObjects
	if err := attachments.LoadListObjects(&loaded, nil); err != nil {
		return nil, fmt.Errorf("loading the iterator over links: %w", err)
	}
	defer loaded.Close()
	iterator, err := link.AttachIter(link.IterOptions{Program: loaded.ListAttachments})
	if err != nil {
		return nil, fmt.Errorf("preparing the iterator over links: %w", err)
	}
	return iterator, nil
})

// Look sees what is attached now. Unlike a question about one interface it waits for nobody
// who makes or changes interfaces: the kernel's lock for these (rtnl) is not taken. It
// returns nil where the kernel cannot tell, and then Ensure asks for each interface.
func Look() Seen {
	seen, err := look()
	if err != nil {
		return nil
	}
	return seen
}

func look() (Seen, error) {
	iterator, err := lister()
	if err != nil {
		return nil, err
	}
	links, err := iterator.Open()
	if err != nil {
		return nil, fmt.Errorf("opening the iterator over links: %w", err)
	}
	defer links.Close()
	data, err := io.ReadAll(links)
	if err != nil {
		return nil, fmt.Errorf("iterating over links: %w", err)
	}
	return parseSeen(data)
}

func parseSeen(data []byte) (Seen, error) {
	seen := Seen{}
	for from := bytes.NewReader(data); ; {
		var one attachments.ListAttachment
		err := binary.Read(from, binary.NativeEndian, &one)
		if errors.Is(err, io.EOF) {
			return seen, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading what the iterator over links wrote: %w", err)
		}
		seen[link.ID(one.Link)] = one
	}
}

// has is true where a program was seen to be attached as a hook wants it. It is false too
// where that was not seen well enough.
func (s Seen) has(id link.ID, index int, hook Hook, program *ebpf.Program) bool {
	at, known := s[id]
	if !known || int(at.Interface) != index {
		return false
	}
	info, err := program.Info()
	if err != nil {
		return false
	}
	own, _ := info.ID()
	return ebpf.ProgramID(at.Program) == own && isPlaced(&at, index, hook)
}

func isPlaced(at *attachments.ListAttachment, index int, hook Hook) bool {
	after := ebpf.ProgramID(0)
	if hook.After != nil {
		after = hook.After(index)
	}
	switch {
	case after != 0:
		return at.Placed != 0 && ebpf.ProgramID(at.Before) == after
	case hook.After != nil && !hook.First:
		return false
	case hook.First:
		return at.Placed != 0 && at.Before == 0
	case hook.Last:
		return at.Placed != 0 && at.Last != 0
	}
	return true
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
