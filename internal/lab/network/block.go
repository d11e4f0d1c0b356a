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

// Lose makes a path lose a share of the frames between a node and the fabric, each
// frame by itself, until Block ends it. The path must have been built without a delay.
func (n *Network) Lose(node *Node, path string, share float64) error {
	if n.delayers[path] != nil || share <= 0 || share > 1 {
		return fmt.Errorf("losing %v of path %s: only a share, and only of paths without a delay", share, path)
	}
	for _, direction := range []Direction{FromNode, ToNode} {
		if err := n.blocks.add(n.Fabric, blockAt{node.port(path), direction}, dropping(share)); err != nil {
			return fmt.Errorf("losing %v of path %s %s %s: %w", share, path, direction, node.NodeName(), err)
		}
	}
	return nil
}

// LoseLarge makes a path lose the frames between a node and the fabric whose packets are larger
// than this, as a switch with a smaller MTU does, until Block ends it. The path must have
// been built without a delay.
func (n *Network) LoseLarge(node *Node, path string, mtu int) error {
	if n.delayers[path] != nil {
		return fmt.Errorf("losing large packets of path %s: only of paths without a delay", path)
	}
	for _, direction := range []Direction{FromNode, ToNode} {
		if err := n.blocks.add(n.Fabric, blockAt{node.port(path), direction}, droppingLarge(mtu)); err != nil {
			return fmt.Errorf("losing packets of path %s above %d bytes %s %s: %w", path, mtu, direction, node.NodeName(), err)
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
	return n.blocks.add(n.Fabric, at, dropping(1))
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

// dropping is a program that drops a share of what it sees.
func dropping(share float64) asm.Instructions {
	const next, drop = -1, 2 // TCX_NEXT, TC_ACT_SHOT
	if share >= 1 {
		return asm.Instructions{asm.Mov.Imm(asm.R0, drop), asm.Return()}
	}
	limit := asm.LoadImm(asm.R1, int64(share*(1<<32)), asm.DWord)
	return asm.Instructions{
		asm.FnGetPrandomU32.Call(),
		limit,
		asm.JLT.Reg(asm.R0, asm.R1, "drop"),
		asm.Mov.Imm(asm.R0, next), asm.Return(),
		asm.Mov.Imm(asm.R0, drop).WithSymbol("drop"), asm.Return(),
	}
}

// droppingLarge is a program that drops what is larger on the wire than this. Of what the NIC
// is to cut, the pieces count.
func droppingLarge(mtu int) asm.Instructions {
	const (
		next, drop = -1, 2
		length     = 0   // of struct __sk_buff
		gsoSize    = 176 // likewise
		header     = 14
		least      = 40 // of IP and TCP
	)
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, gsoSize, asm.Word),
		asm.JNE.Imm(asm.R2, 0, "pieces"),
		asm.LoadMem(asm.R2, asm.R1, length, asm.Word),
		asm.JGT.Imm(asm.R2, int32(mtu+header), "drop"),
		asm.Mov.Imm(asm.R0, next), asm.Return(),
		asm.JGT.Imm(asm.R2, int32(mtu-least), "drop").WithSymbol("pieces"),
		asm.Mov.Imm(asm.R0, next), asm.Return(),
		asm.Mov.Imm(asm.R0, drop).WithSymbol("drop"), asm.Return(),
	}
}

func (b *blocks) add(fabric *Namespace, at blockAt, dropping asm.Instructions) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.links[at] != nil {
		return nil
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "block", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: dropping,
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
