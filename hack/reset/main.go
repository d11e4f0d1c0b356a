// SPDX-License-Identifier: Apache-2.0

// Command reset shows, as root, connections that a kernel resets as they open; nothing of Braid runs.
// docs/kernel-notes.md says why. The client is this program: it sends the last packet of the
// handshake by one processor and the request by another, within 10 µs. With -processors 1 it
// sends both by one, so that the kernel has one after the other.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"braid.dev/braid/internal/lab/network"
)

const nic = "eth0"

var (
	client    = netip.MustParseAddr("10.77.0.1")
	server    = netip.MustParseAddrPort("10.77.0.2:80")
	clientMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	serverMAC = net.HardwareAddr{2, 0, 0, 0, 0, 2}
)

func main() {
	connections := flag.Int("connections", 1_000_000, "how many to open")
	processors := flag.Int("processors", 2, "how many processors send: 1 or 2")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *connections, *processors); err != nil {
		fmt.Fprintln(os.Stderr, "reset:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, connections, processors int) (err error) {
	if processors != 1 && processors != 2 || runtime.NumCPU() < processors {
		return fmt.Errorf("this machine has %d processors: give -processors 1, or 2 if there are as many", runtime.NumCPU())
	}
	name := fmt.Sprintf("reset%d", os.Getpid())
	near, err := network.New(name + "c")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, near.Delete()) }()
	far, err := network.New(name + "s")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, far.Delete()) }()
	if err := join(near, far); err != nil {
		return err
	}
	return near.Do(func() error { return count(ctx, connections, processors == 2) })
}

// join has the far end accept. The near one has no address, so that its kernel answers nothing.
func join(near, far *network.Namespace) error {
	addresses := network.Options{AddressesB: []string{server.Addr().String() + "/24"}}
	if err := network.Connect(near, nic, far, nic, addresses); err != nil {
		return err
	}
	for _, arguments := range [][]string{
		{"link", "set", nic, "address", serverMAC.String()},
		{"neighbour", "add", client.String(), "lladdr", clientMAC.String(), "dev", nic},
	} {
		if _, err := far.Run("ip", arguments...); err != nil {
			return err
		}
	}
	listener, err := far.Listen(context.Background(), "tcp4", server.String())
	if err != nil {
		return err
	}
	go accept(listener)
	return nil
}

// accept keeps a few connections: the client resets each.
func accept(listener net.Listener) {
	kept := make([]net.Conn, 1000)
	for i := 0; ; i++ {
		accepted, err := listener.Accept()
		if err != nil {
			return
		}
		if oldest := kept[i%len(kept)]; oldest != nil {
			_ = oldest.Close() // it has been reset
		}
		kept[i%len(kept)] = accepted
	}
}

func count(ctx context.Context, connections int, apart bool) error {
	c, err := newClient(apart)
	if err != nil {
		return err
	}
	resets, silent := 0, 0
	for i := range connections {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch answer, err := c.connect(uint16(1024 + i%60_000)); {
		case err != nil:
			return err
		case c.failed.Load() != nil:
			return *c.failed.Load()
		case answer == reset:
			resets++
		case answer == none:
			silent++
		}
	}
	fmt.Printf("%d of %d connections were reset as they opened, %d had no answer\n", resets, connections, silent)
	return nil
}
