// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"braid.dev/braid/bpf/packettest"
)

const (
	syn, rst, psh, ack = 1 << 1, 1 << 2, 1 << 3, 1 << 4
	// Where a frame of IPv4 has them.
	portAt, sequenceAt, flagsAt, headers = 36, 38, 47, 54
	// within is how long after the handshake's last packet the request is sent at the latest.
	within = 10 * time.Microsecond
	// patience is how long an answer may take: the kernel drops a few requests, which a true
	// client would send again.
	patience = 50 * time.Millisecond
	ipv4     = unix.ETH_P_IP<<8&0xff00 | unix.ETH_P_IP>>8
)

// answer is what became of a connection.
type answer int

const (
	acknowledged answer = iota
	reset
	none
)

// tcpClient is a TCP that sends what it likes.
type tcpClient struct {
	socket int
	// request is what the other processor is to send; nil where there is none.
	request atomic.Pointer[[]byte]
	apart   bool
	failed  atomic.Pointer[error] // why the other processor sends no more
	buffer  [2048]byte
}

// newClient sends requests by a processor of their own if they are to be sent apart.
func newClient(apart bool) (*tcpClient, error) {
	c := &tcpClient{apart: apart}
	var err error
	if c.socket, err = openSocket(); err != nil {
		return nil, err
	}
	longest := unix.NsecToTimeval(int64(patience))
	if err := unix.SetsockoptTimeval(c.socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &longest); err != nil {
		return nil, fmt.Errorf("limiting how long an answer may take: %w", err)
	}
	if !apart {
		return c, nil
	}
	other, err := openSocket()
	if err != nil {
		return nil, err
	}
	go func() {
		err := c.sendRequests(other)
		c.failed.Store(&err)
	}()
	return c, pin(0)
}

func openSocket() (int, error) {
	link, err := net.InterfaceByName(nic)
	if err != nil {
		return 0, fmt.Errorf("looking for %s: %w", nic, err)
	}
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("opening a packet socket: %w", err)
	}
	if err := unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: ipv4, Ifindex: link.Index}); err != nil {
		return 0, fmt.Errorf("binding a packet socket to %s: %w", nic, err)
	}
	return socket, nil
}

// pin has the goroutine run on one processor for good.
func pin(processor int) error {
	runtime.LockOSThread()
	var processors unix.CPUSet
	processors.Set(processor)
	if err := unix.SchedSetaffinity(0, &processors); err != nil {
		return fmt.Errorf("running on processor %d: %w", processor, err)
	}
	return nil
}

// sendRequests goes on until one cannot be sent.
func (c *tcpClient) sendRequests(socket int) error {
	if err := pin(1); err != nil {
		return err
	}
	for {
		request := c.request.Swap(nil)
		if request == nil {
			continue
		}
		wait(rand.N(within))
		if _, err := unix.Write(socket, *request); err != nil {
			return fmt.Errorf("sending a request: %w", err)
		}
	}
}

// wait keeps the processor: a timer is later than this by as much.
func wait(long time.Duration) {
	for start := time.Now(); time.Since(start) < long; {
	}
}

// connect opens a connection and asks, and resets it at the end.
func (c *tcpClient) connect(port uint16) (answer, error) {
	first := rand.Uint32()
	if err := c.send(port, syn, first, 0, nil); err != nil {
		return none, err
	}
	synAck, err := c.receive(port, true)
	if synAck == nil || err != nil {
		return none, err
	}
	next := binary.BigEndian.Uint32(synAck[sequenceAt:]) + 1
	request := frame(port, ack|psh, first+1, next, []byte("request"))
	if c.apart {
		c.request.Store(&request)
	}
	if err := c.send(port, ack, first+1, next, nil); err != nil {
		return none, err
	}
	if !c.apart {
		if _, err := unix.Write(c.socket, request); err != nil {
			return none, fmt.Errorf("sending a request: %w", err)
		}
	}
	got, err := c.receive(port, false)
	if err != nil {
		return none, err
	}
	result := judge(got, next)
	return result, c.send(port, rst, first+8, 0, nil)
}

// judge takes a RST without an ACK for one: a kernel answers so what belongs to no connection it knows.
func judge(frame []byte, next uint32) answer {
	switch {
	case frame == nil:
		return none
	case frame[flagsAt] == rst && binary.BigEndian.Uint32(frame[sequenceAt:]) == next:
		return reset
	}
	return acknowledged
}

func frame(port uint16, flags uint8, sequence, acknowledge uint32, payload []byte) []byte {
	made := packettest.Segment{
		From: netip.AddrPortFrom(client, port), To: server,
		Sequence: sequence, Acknowledge: acknowledge, Flags: flags, Window: 0xffff, Payload: payload,
	}.Frame()
	copy(made, serverMAC)
	copy(made[len(serverMAC):], clientMAC)
	return made
}

func (c *tcpClient) send(port uint16, flags uint8, sequence, acknowledge uint32, payload []byte) error {
	if _, err := unix.Write(c.socket, frame(port, flags, sequence, acknowledge, payload)); err != nil {
		return fmt.Errorf("sending a segment: %w", err)
	}
	return nil
}

// receive returns the next segment to a port that is a SYN or none; nil without one.
func (c *tcpClient) receive(port uint16, isSYN bool) ([]byte, error) {
	for {
		length, err := unix.Read(c.socket, c.buffer[:])
		if errors.Is(err, unix.EAGAIN) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("receiving a segment: %w", err)
		}
		got := c.buffer[:length]
		if length >= headers && binary.BigEndian.Uint16(got[portAt:]) == port && got[flagsAt]&syn != 0 == isSYN {
			return got, nil
		}
	}
}
