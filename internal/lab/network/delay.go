// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A delayer is the switch of a path that delays: not every kernel has netem. It
// passes frames between the fabric's ports of the path, each the path's delay after it
// came, in the order in which they came. Packets larger than the link's MTU pass
// whole, with their unfinished checksums: a header of virtio goes with each frame.
// VLAN tags are lost.
//
// One thread waits, reads and sends. It holds nothing but its sockets, so that it
// leaves nothing behind when its process is killed; a network with such paths works
// as long as the process that built it.
type delayer struct {
	delay atomic.Int64 // ns
	box   atomic.Pointer[boxHolder]
	ports []int // a packet socket for each port
	stop  int   // a pipe's end; closed by the other end
	wake  int
	ended chan error

	blocked []blocked       // of each port
	learned map[[6]byte]int // the port behind which an address was seen
	waiting []waiting
	bytes   int // of all that is waiting
	scratch []byte
}

// blocked tells which frames of a port are lost.
type blocked struct{ fromNode, toNode atomic.Bool }

// waiting is a frame, and when it goes to which port (-1: all but the one that it
// came from).
type waiting struct {
	due   int64 // CLOCK_MONOTONIC, ns
	late  bool  // a box has others overtake it
	from  int
	to    int
	frame []byte
}

const (
	virtioHeader   = 10
	ethernetHeader = 14
	largestFrame   = virtioHeader + ethernetHeader + 64<<10 + 4096
	// socketBuffer holds what is under way while the thread does not run, in bytes.
	socketBuffer = 32 << 20
	// mostWaiting limits what is under way on one path, in bytes.
	mostWaiting = 64 << 20
	// readsInARow come before those are sent whose time has come.
	readsInARow = 64
	toAll       = -1
)

// newDelayer begins to pass frames between ports of a namespace.
func newDelayer(namespace *Namespace, ports []string, delay time.Duration) (*delayer, error) {
	d := &delayer{
		stop: -1, wake: -1, ended: make(chan error, 1), blocked: make([]blocked, len(ports)),
		learned: map[[6]byte]int{}, scratch: make([]byte, largestFrame),
	}
	d.delay.Store(delay.Nanoseconds())
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("making a pipe: %w", err)
	}
	d.stop, d.wake = pipe[0], pipe[1]
	for _, port := range ports {
		socket, err := openPort(namespace, port)
		if err != nil {
			return nil, errors.Join(err, d.closeAll())
		}
		d.ports = append(d.ports, socket)
	}
	go func() { d.ended <- d.run() }()
	return d, nil
}

// close ends it, and waits until it has ended.
func (d *delayer) close() error {
	err := unix.Close(d.wake)
	d.wake = -1
	return errors.Join(err, <-d.ended, d.closeAll())
}

func (d *delayer) closeAll() (err error) {
	for _, file := range append(d.ports, d.stop, d.wake) {
		if file >= 0 {
			err = errors.Join(err, unix.Close(file))
		}
	}
	return err
}

// openPort opens a packet socket on an interface, for whole frames that come in.
func openPort(namespace *Namespace, name string) (int, error) {
	index, err := namespace.Index(name)
	if err != nil {
		return -1, err
	}
	socket := -1
	err = namespace.Do(func() (err error) {
		socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("opening a packet socket on %s: %w", name, err)
	}
	if err := setUpPort(socket, index); err != nil {
		return -1, errors.Join(fmt.Errorf("setting up a packet socket on %s: %w", name, err), unix.Close(socket))
	}
	return socket, nil
}

func setUpPort(socket, index int) error {
	const everyProtocol = 0x0300 // ETH_P_ALL in network order
	return errors.Join(
		unix.SetsockoptInt(socket, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
		unix.SetsockoptInt(socket, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer),
		unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer),
		unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: everyProtocol, Ifindex: index}),
	)
}

// run passes frames until it is stopped. Its thread wakes as exactly as the kernel
// can, and ends with it.
func (d *delayer) run() error {
	runtime.LockOSThread()
	const oneMicrosecond = 1000
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, oneMicrosecond, 0, 0, 0); err != nil {
		return fmt.Errorf("making the timer exact: %w", err)
	}
	files := []unix.PollFd{{Fd: int32(d.stop), Events: unix.POLLIN}}
	for _, port := range d.ports {
		files = append(files, unix.PollFd{Fd: int32(port), Events: unix.POLLIN})
	}
	for {
		_, err := unix.Ppoll(files, d.untilDue(), nil)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("waiting for frames: %w", err)
		}
		if files[0].Revents != 0 {
			return nil
		}
		for i, file := range files[1:] {
			if file.Revents != 0 {
				d.receive(i)
			}
		}
		d.askBox()
		d.sendDue()
	}
}

// untilDue is the time until the first frame has to go, nil when there is none. A box
// is asked every millisecond.
func (d *delayer) untilDue() *unix.Timespec {
	left := int64(math.MaxInt64)
	if len(d.waiting) > 0 {
		left = max(0, d.waiting[0].due-monotonic())
	}
	if d.box.Load() != nil {
		left = min(left, time.Millisecond.Nanoseconds())
	}
	if left == math.MaxInt64 {
		return nil
	}
	timeout := unix.NsecToTimespec(left)
	return &timeout
}

func monotonic() int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // cannot fail
	return now.Nano()
}

// receive takes what came to a port. Errors are those of the interface (it is down,
// it is gone): a link without frames.
func (d *delayer) receive(port int) {
	for range readsInARow {
		n, _, err := unix.Recvfrom(d.ports[port], d.scratch, unix.MSG_TRUNC)
		if err != nil {
			return
		}
		if n < virtioHeader+ethernetHeader || n > len(d.scratch) || d.bytes+n > mostWaiting || d.blocked[port].fromNode.Load() {
			continue
		}
		frame := append([]byte(nil), d.scratch[:n]...)
		if box := d.box.Load(); box != nil {
			d.enqueueAll(box.Pass(port, frame))
			continue
		}
		d.enqueue(port, frame, 0)
	}
}

// askBox has what a box held back go on.
func (d *delayer) askBox() {
	if box := d.box.Load(); box != nil {
		d.enqueueAll(box.Due(time.Now()))
	}
}

func (d *delayer) enqueueAll(frames []Frame) {
	for _, frame := range frames {
		d.enqueue(frame.From, frame.Data, frame.Later)
	}
}

func (d *delayer) enqueue(port int, frame []byte, later time.Duration) {
	destination, source := [6]byte(frame[virtioHeader:]), [6]byte(frame[virtioHeader+6:])
	d.learned[source] = port
	to, known := d.learned[destination]
	if !known || isGroup(destination) {
		to = toAll
	}
	if to == port {
		return
	}
	d.bytes += len(frame)
	added := waiting{due: monotonic() + d.delay.Load() + later.Nanoseconds(), late: later > 0, from: port, to: to, frame: frame}
	at := len(d.waiting)
	for at > 0 && d.waiting[at-1].late && d.waiting[at-1].due > added.due {
		at--
	}
	d.waiting = slices.Insert(d.waiting, at, added)
}

func isGroup(address [6]byte) bool { return net.HardwareAddr(address[:])[0]&1 != 0 }

func (d *delayer) sendDue() {
	now, sent := monotonic(), 0
	for ; sent < len(d.waiting) && d.waiting[sent].due <= now; sent++ {
		d.send(&d.waiting[sent])
		d.bytes -= len(d.waiting[sent].frame)
		d.waiting[sent].frame = nil
	}
	d.waiting = d.waiting[sent:]
}

// send gives a frame to its ports; one that a port does not take (its queue is full,
// it is down) is lost, as on a wire.
func (d *delayer) send(w *waiting) {
	for port, socket := range d.ports {
		wanted := port == w.to || (w.to == toAll && port != w.from)
		if wanted && !d.blocked[port].toNode.Load() {
			_, _ = unix.Write(socket, w.frame)
		}
	}
}
