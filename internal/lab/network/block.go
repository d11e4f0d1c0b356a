// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// Direction is that of the frames between a node and the fabric.
type Direction string

const (
	// FromNode is what the node sends.
	FromNode Direction = "from the node"
	// ToNode is what the node would receive.
	ToNode Direction = "to the node"
)

// Block makes a path lose every frame from a node, or to it, or lets them pass
// again. NICs keep their carriers, and nobody is told. Without a direction both are
// meant. It holds no longer than the process that built the network.
func (n *Network) Block(node *Node, path string, blocked bool, directions ...Direction) error {
	if len(directions) == 0 {
		directions = []Direction{FromNode, ToNode}
	}
	for _, direction := range directions {
		if err := n.block(node, path, blocked, direction); err != nil {
			return fmt.Errorf("blocking path %s %s %s: %w", path, direction, node.NodeName(), err)
		}
	}
	return nil
}

func (n *Network) block(node *Node, path string, blocked bool, direction Direction) error {
	if delayer, ok := n.delayers[path]; ok {
		port := &delayer.blocked[node.Number-1]
		if direction == FromNode {
			port.fromNode.Store(blocked)
		} else {
			port.toNode.Store(blocked)
		}
		return nil
	}
	at := blockAt{node.port(path), direction}
	if !blocked {
		return n.blocks.remove(at)
	}
	return n.blocks.add(n.Fabric, at)
}

// SetDelay changes the one-way delay of a path that was built with one. Frames that
// are under way keep theirs, and none overtakes another.
func (n *Network) SetDelay(path string, delay time.Duration) error {
	delayer, ok := n.delayers[path]
	if !ok || delay <= 0 {
		return fmt.Errorf("setting a delay of %s for path %q: only paths built with a delay can have another one", delay, path)
	}
	delayer.delay.Store(delay.Nanoseconds())
	return nil
}

// blockAt is a port of the fabric, and the frames that are lost there.
type blockAt struct {
	port      string
	direction Direction
}

// blocks are those of paths without a delay: a program on the fabric's port that
// drops everything.
type blocks struct {
	mu    sync.Mutex
	links map[blockAt]link.Link
}

func (b *blocks) add(fabric *Namespace, at blockAt) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.links[at] != nil {
		return nil
	}
	const drop = 2 // TC_ACT_SHOT
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "block", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, drop), asm.Return()},
	})
	if err != nil {
		return fmt.Errorf("loading a program that drops: %w", err)
	}
	defer program.Close()
	index, err := fabric.Index(at.port)
	if err != nil {
		return err
	}
	hook := ebpf.AttachTCXEgress
	if at.direction == FromNode {
		hook = ebpf.AttachTCXIngress
	}
	var attached link.Link
	err = fabric.Do(func() (err error) {
		attached, err = link.AttachTCX(link.TCXOptions{Interface: index, Program: program, Attach: hook})
		return err
	})
	if err != nil {
		return fmt.Errorf("attaching a program that drops to %s: %w", at.port, err)
	}
	if b.links == nil {
		b.links = map[blockAt]link.Link{}
	}
	b.links[at] = attached
	return nil
}

func (b *blocks) remove(at blockAt) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	attached := b.links[at]
	if attached == nil {
		return nil
	}
	delete(b.links, at)
	return attached.Close()
}

func (b *blocks) close() (err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for at, attached := range b.links {
		err = errors.Join(err, attached.Close())
		delete(b.links, at)
	}
	return err
}
