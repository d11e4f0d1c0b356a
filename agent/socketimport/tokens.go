// SPDX-License-Identifier: Apache-2.0

package socketimport

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"

	"github.com/cilium/ebpf/link"

	"braid.dev/braid/agent/endpoints/namespace"
	programs "braid.dev/braid/bpf/sockets"
)

// peerTokens tells the peers' tokens of connections; nil where the kernel cannot.
type peerTokens struct{ iterator *link.Iter }

// openPeerTokens needs a kernel that describes its structures (BTF).
func openPeerTokens() (*peerTokens, error) {
	var loaded programs.TokensPrograms
	if err := programs.LoadTokensObjects(&loaded, nil); err != nil {
		return nil, fmt.Errorf("loading the iterator over connections: %w", err)
	}
	defer loaded.Close()
	iterator, err := link.AttachIter(link.IterOptions{Program: loaded.ListTokens})
	if err != nil {
		return nil, fmt.Errorf("preparing the iterator over connections: %w", err)
	}
	return &peerTokens{iterator}, nil
}

func (p *peerTokens) close() error {
	if p == nil {
		return nil
	}
	return p.iterator.Close()
}

// read lists the peers' tokens in this network namespace, by its own.
func (p *peerTokens) read(file *os.File) (map[uint32]uint32, error) {
	if p == nil {
		return nil, nil
	}
	var sockets io.ReadCloser
	// The iterator belongs to the namespace of the thread that opens it.
	err := namespace.Do(file, func() (err error) {
		sockets, err = p.iterator.Open()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening the iterator over connections: %w", err)
	}
	defer sockets.Close()
	data, err := io.ReadAll(sockets)
	if err != nil {
		return nil, fmt.Errorf("iterating over connections: %w", err)
	}
	return parseTokens(data), nil
}

// parseTokens reads pairs of tokens, as the program writes them.
func parseTokens(data []byte) map[uint32]uint32 {
	pairs := map[uint32]uint32{}
	var pair programs.TokensTokenPair
	for {
		read, err := binary.Decode(data, binary.NativeEndian, &pair)
		if err != nil {
			return pairs // all whole ones are read
		}
		pairs[pair.Local], data = pair.Remote, data[read:]
	}
}
