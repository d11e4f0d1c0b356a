// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"braid.dev/braid/bpf"
)

// What TC programs return.
const (
	verdictNext     = -1
	verdictDrop     = 2
	verdictRedirect = 7
)

// longer is by how many bytes a program may make a frame longer.
const longer = 256

// run runs a program on a frame: nothing is sent, whatever it returns. The calling
// thread's network namespace has the interface that the packet is on.
func run(program *ebpf.Program, frame []byte, on, from int) (verdict int, after []byte, err error) {
	options := ebpf.RunOptions{
		Data: frame, DataOut: make([]byte, len(frame)+longer),
		Context: bpf.SKBuff{Ifindex: uint32(on), IngressIfindex: uint32(from)},
	}
	result, err := program.Run(&options)
	if err != nil {
		return 0, nil, fmt.Errorf("replaying %d bytes: %w", len(frame), err)
	}
	return int(int32(result)), options.DataOut, nil
}

// cell is a network namespace of its own with one interface, which has the index of
// a real one. What a program sends there goes nowhere: a rule that answers with a
// reset does so also in a replay.
type cell struct {
	work chan func()
}

// newCell makes the namespace. It needs CAP_SYS_ADMIN.
func newCell(index int) (*cell, error) {
	c := &cell{work: make(chan func())}
	made := make(chan error)
	go func() {
		// The thread is not unlocked: it ends with this function, and the namespace with it.
		runtime.LockOSThread()
		err := furnish(index)
		made <- err
		if err != nil {
			return
		}
		for work := range c.work {
			work()
		}
	}()
	if err := <-made; err != nil {
		return nil, fmt.Errorf("making a network namespace for the replay: %w", err)
	}
	return c, nil
}

func furnish(index int) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	// The other end takes the next index that was never used, and must not take this one.
	for range index {
		attributes := netlink.NewLinkAttrs()
		attributes.Name, attributes.Index = "replay", index
		err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: "nowhere"})
		if err == nil {
			return setUp("replay", "nowhere")
		}
		if !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("adding an interface: %w", err)
		}
		if err := skipIndexes(); err != nil {
			return err
		}
	}
	return fmt.Errorf("no interface can have the index %d", index)
}

// skipIndexes uses up two indexes.
func skipIndexes() error {
	attributes := netlink.NewLinkAttrs()
	attributes.Name = "skipped"
	pair := &netlink.Veth{LinkAttrs: attributes, PeerName: "skipped2"}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("adding an interface: %w", err)
	}
	return netlink.LinkDel(pair)
}

func setUp(names ...string) error {
	for _, name := range names {
		found, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(found)
		}
		if err != nil {
			return fmt.Errorf("setting up an interface: %w", err)
		}
	}
	return nil
}

// do runs a function in the namespace.
func (c *cell) do(work func() error) error {
	done := make(chan error)
	c.work <- func() { done <- work() }
	return <-done
}

func (c *cell) close() { close(c.work) }

// isGone is true where what was looked for is not there.
func isGone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, ebpf.ErrKeyNotExist) || errors.As(err, &netlink.LinkNotFoundError{})
}
