// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"braid.dev/braid/agent/endpoints/namespace"
	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/bpf"
	programs "braid.dev/braid/bpf/proxy"
)

const (
	// mostConnections of one client; further ones go on untouched.
	mostConnections = 4096
	// mostHeld is how many servers are asked for one client at the same time: who asks silent
	// ones must not take the place of all others. Further connections go on untouched.
	mostHeld = mostDialing / 4
	// mostUntouched is how many connections of one client are remembered that go on untouched.
	// Of further ones the client's next SYN is held again: the table is all clients' together.
	mostUntouched = 4096
	// patience is how long a client may take to acknowledge that its server answered.
	patience = 70 * time.Second
	// linger is how long late segments of an ended connection are the relay's.
	linger = 65 * time.Second
)

// relay is that of one client.
type relay struct {
	proxy     *Proxy
	client    Client
	namespace *os.File
	outside   int // the node's end of its interface
	inside    int
	toRelay   *frames
	toNode    *frames
	paths     *pathmanager.Namespace
	lookup    programs.ListenObjects
	links     []link.Link
	atClient  []*hook
	listeners []net.Listener
	read      uint32 // how many of the client's SYNs were read, by Run alone

	mu       sync.Mutex
	facts    programs.FromClientRelay
	closed   bool
	held     int
	pending  map[flowKey]*net.TCPConn // servers that answered, by whose client is to be answered
	open     map[*connection]struct{} // both ends
	settling map[flowKey]*time.Timer  // entries that go by themselves
}

func (p *Proxy) newRelay(index int) (*relay, error) {
	r := &relay{
		proxy: p, client: Client{Interface: index},
		pending: map[flowKey]*net.TCPConn{}, open: map[*connection]struct{}{}, settling: map[flowKey]*time.Timer{},
	}
	if err := r.build(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *relay) build() (err error) {
	var at netlink.Link
	if err := r.proxy.inNode(func() (err error) { at, err = netlink.LinkByIndex(r.client.Interface); return err }); err != nil {
		return fmt.Errorf("finding the client's interface: %w", err)
	}
	if r.namespace, err = newNamespace(); err != nil {
		return err
	}
	if r.outside, err = r.joinNode(at.Attrs().MTU); err != nil {
		return err
	}
	if r.inside, err = r.furnish(); err != nil {
		return err
	}
	if err := r.set(); err != nil {
		return err
	}
	if r.paths, err = pathmanager.Open(fmt.Sprintf("/proc/self/fd/%d", r.namespace.Fd()), r.managed()); err != nil {
		return err
	}
	if err := errors.Join(r.openFrames(), r.listen()); err != nil {
		return err
	}
	return r.attach(at)
}

// countRead has the client at this interface hand over one more SYN, as one was read.
func (r *relay) countRead(index uint32) error {
	r.read++
	err := r.proxy.from.HandedRead.Update(index, r.read, ebpf.UpdateExist)
	if err == nil || errors.Is(err, ebpf.ErrKeyNotExist) { // the relay was closed meanwhile
		return nil
	}
	return fmt.Errorf("counting the SYNs of interface %d that were read: %w", index, err)
}

func (r *relay) managed() pathmanager.Options {
	options := pathmanager.Options{StatePath: r.proxy.options.StatePath, Proc: r.proxy.options.Proc, Log: r.proxy.options.Log}
	if r.proxy.tracked != nil {
		options.Destination = r.proxy.tracked.Destination
	}
	return options
}

// attach begins with what takes packets from the relay, and ends with what leads there.
func (r *relay) attach(at netlink.Link) error {
	r.facts = programs.FromClientRelay{Client: uint32(r.client.Interface)}
	if at.Type() == "veth" && at.Attrs().NetNsID >= 0 {
		r.facts.HasPeer = 1
	}
	copy(r.facts.Ethernet[:], at.Attrs().HardwareAddr)
	maps := r.proxy.from.FromClientMaps
	if err := maps.Relays.Put(uint32(r.outside), r.facts); err != nil {
		return fmt.Errorf("writing the relay of interface %d: %w", r.client.Interface, err)
	}
	for _, count := range []*ebpf.Map{maps.Handed, maps.HandedRead} {
		if err := count.Put(uint32(r.client.Interface), uint32(0)); err != nil {
			return fmt.Errorf("counting the SYNs of interface %d: %w", r.client.Interface, err)
		}
	}
	if err := maps.Clients.Put(uint32(r.client.Interface), programs.FromClientClient{Relay: uint32(r.outside)}); err != nil {
		return fmt.Errorf("writing the client at interface %d: %w", r.client.Interface, err)
	}
	// Without pins: they end with the process.
	return r.proxy.inNode(func() error {
		attached, err := link.AttachTCX(link.TCXOptions{Interface: r.outside, Program: r.proxy.back.FromRelay, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return fmt.Errorf("attaching to the relay's interface: %w", err)
		}
		r.links = append(r.links, attached)
		for _, h := range r.hooks() {
			r.atClient = append(r.atClient, h)
			if err := r.attachHook(h); err != nil {
				return err
			}
		}
		return nil
	})
}

// listen has the relay's listeners answer at all addresses and ports.
func (r *relay) listen() error {
	if err := programs.LoadListenObjects(&r.lookup, nil); err != nil {
		return fmt.Errorf("loading the look-up of listeners: %w", err)
	}
	for number, network := range []string{"tcp4", "tcp6"} {
		listener, err := r.listener(network)
		if err != nil {
			return err
		}
		r.listeners = append(r.listeners, listener)
		if err := register(r.lookup.Listeners, uint32(number), listener); err != nil {
			return err
		}
		go r.accept(listener)
	}
	attached, err := link.AttachNetNs(int(r.namespace.Fd()), r.lookup.Listen)
	if err != nil {
		return fmt.Errorf("attaching the look-up of listeners: %w", err)
	}
	r.links = append(r.links, attached)
	return nil
}

// apply relays the connections that the client begins from now on, from these addresses.
func (r *relay) apply(ctx context.Context, client Client) error {
	if reflect.DeepEqual(client, r.client) {
		return r.order()
	}
	if len(client.Addresses) > 0 {
		if err := r.paths.Configure(ctx, client.Subflows); err != nil {
			return err
		}
	}
	if err := r.allow(client.Addresses); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.client = client
	return nil
}

func (r *relay) addressKey(address netip.Addr) (key programs.FromClientClientAddress) {
	key.Address.Word, key.Interface = bpf.Words(address), uint32(r.client.Interface)
	return key
}

func (r *relay) allow(addresses []netip.Addr) error {
	allowed := r.proxy.from.ClientAddresses
	wanted := map[netip.Addr]bool{}
	for _, address := range addresses {
		wanted[address] = true
		if err := allowed.Put(r.addressKey(address), uint32(1)); err != nil {
			return fmt.Errorf("allowing address %s: %w", address, err)
		}
	}
	for _, address := range r.client.Addresses {
		if wanted[address] {
			continue
		}
		if err := allowed.Delete(r.addressKey(address)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forgetting address %s: %w", address, err)
		}
	}
	return nil
}

// count is how many connections are relayed, or about to be.
func (r *relay) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held + len(r.pending) + len(r.open)
}

// close ends all connections, and everything that build made.
func (r *relay) close() (failed error) {
	r.mu.Lock()
	r.closed = true
	for c := range r.open {
		c.abort()
	}
	for _, server := range r.pending {
		abort(server)
	}
	for key, timer := range r.settling {
		timer.Stop()
		_ = r.proxy.from.RelayedFlows.Delete(key)
	}
	r.mu.Unlock()
	failed = errors.Join(r.allow(nil), r.detach())
	for _, attached := range r.links {
		failed = errors.Join(failed, attached.Close())
	}
	for _, listener := range r.listeners {
		failed = errors.Join(failed, listener.Close())
	}
	_ = r.proxy.from.Clients.Delete(uint32(r.client.Interface))
	_ = r.proxy.from.Relays.Delete(uint32(r.outside))
	_ = r.proxy.from.Handed.Delete(uint32(r.client.Interface))
	_ = r.proxy.from.HandedRead.Delete(uint32(r.client.Interface))
	return errors.Join(failed, r.lookup.Close(), r.leave())
}

// leave removes the interface, and lets go of the namespace.
func (r *relay) leave() (failed error) {
	if r.paths != nil {
		failed = errors.Join(failed, r.paths.Restore(context.Background()), r.paths.Close())
	}
	for _, f := range []*frames{r.toRelay, r.toNode} {
		if f != nil {
			failed = errors.Join(failed, f.close())
		}
	}
	if r.outside != 0 {
		failed = errors.Join(failed, r.proxy.inNode(func() error {
			err := netlink.LinkDel(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: r.outside}})
			return wrap("removing the relay's interface", err)
		}))
	}
	if r.namespace != nil {
		failed = errors.Join(failed, r.namespace.Close())
	}
	return failed
}

// do runs f in the relay's namespace.
func (r *relay) do(f func() error) error { return namespace.Do(r.namespace, f) }
