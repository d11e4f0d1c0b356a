// SPDX-License-Identifier: Apache-2.0

// Package proxy takes the plain TCP connections of clients (guests, and pods whose sockets
// nobody may change) on their node, and goes on by MPTCP from the client's own address and
// port.
//
// Each client has a relay: a network namespace in which every address is local, joined to
// the node by one pair of interfaces. What leads packets there, and what the relay sends
// back to the client's interface, is in bpf/proxy. All of it ends with the process: no
// program is pinned, no namespace has a name, and the node's own stack has no settings,
// routes or rules for it.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/go-logr/logr"

	"braid.dev/braid/agent/endpoints/namespace"
	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/agent/pathmanager/conntrack"
	programs "braid.dev/braid/bpf/proxy"
	"braid.dev/braid/internal/relayed"
)

// Client is whose connections are relayed.
type Client struct {
	// Interface is the index of the node's end of its interface.
	Interface int
	// Tenant is its namespace: tenants share what the proxy can do at the same time.
	Tenant string
	// Addresses from which it may be relayed.
	Addresses []netip.Addr
	// Subflows are those of its connections to servers.
	Subflows pathmanager.Settings
}

// Options of a Proxy.
type Options struct {
	// Node is the node's network namespace; nil for the process's own.
	Node *os.File
	// Proc is where a proc file system is mounted whose sys/net can be written; empty for /proc.
	Proc string
	// StatePath is a directory for what the path manager notes.
	StatePath string
	// DialTimeout is how long a server is waited for, before the client asks it itself; 0
	// for five seconds, in which a lost SYN comes three times.
	DialTimeout time.Duration
	// PlainFor is how long a peer that answered without MPTCP is left alone; 0 for ten minutes.
	PlainFor time.Duration
	// MostWaiting is how many bytes may wait in all connections together for those that do not
	// read; 0 for a quarter of the container's limit of memory.
	MostWaiting int
	// Log gets what cannot be returned.
	Log logr.Logger
}

func (o *Options) setDefaults() {
	if o.Proc == "" {
		o.Proc = "/proc"
	}
	if o.DialTimeout == 0 {
		o.DialTimeout = 5 * time.Second
	}
	if o.PlainFor == 0 {
		o.PlainFor = 10 * time.Minute
	}
	if o.MostWaiting == 0 {
		o.MostWaiting = mostWaiting("/sys/fs/cgroup/memory.max")
	}
}

// Proxy has a relay for each client of a node.
type Proxy struct {
	options  Options
	from     programs.FromClientObjects
	to       programs.ToClientObjects
	back     programs.FromRelayObjects
	held     *ringbuf.Reader
	tracked  *conntrack.Table
	dialing  *dialing
	memory   memory
	outcomes outcomes
	end      context.CancelFunc // of boundMemory: connections go on after Run
	bounding sync.WaitGroup

	mu     sync.Mutex
	relays map[int]*relay // by the client's interface
}

// mostDialing is how many servers are waited for at the same time.
const mostDialing = 256

// Open loads the programs, and attaches none.
func Open(options Options) (*Proxy, error) {
	options.setDefaults()
	p := &Proxy{options: options, dialing: newDialing(), memory: memory{most: options.MostWaiting}, relays: map[int]*relay{}}
	bounding, end := context.WithCancel(context.Background())
	p.end = end
	if err := p.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("loading the proxy's programs: %w", err), p.Close())
	}
	var err error
	if p.held, err = ringbuf.NewReader(p.from.HeldSegments); err != nil {
		return nil, errors.Join(fmt.Errorf("opening the ring of held segments: %w", err), p.Close())
	}
	if err := p.inNode(sweep); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	err = p.inNode(func() (err error) { p.tracked, err = conntrack.Dial(0); return err })
	if err != nil {
		options.Log.Error(err, "failed to open connection tracking: the backends of Services are known by their announcements alone")
	}
	p.bounding.Go(func() { p.boundMemory(bounding) })
	return p, nil
}

// sweep removes what a proxy left that was killed.
func sweep() error {
	dead, _, err := relayed.Dead()
	return errors.Join(err, relayed.Sweep(dead))
}

func (p *Proxy) load() error {
	if err := programs.LoadFromClientObjects(&p.from, nil); err != nil {
		return err
	}
	m := p.from.FromClientMaps
	shared := map[string]*ebpf.Map{
		"clients": m.Clients, "relays": m.Relays, "relayed_flows": m.RelayedFlows, "relayed_joins": m.RelayedJoins,
		"held_segments": m.HeldSegments, "handed": m.Handed, "handed_read": m.HandedRead, // which those programs do not use
	}
	return errors.Join(loadShared(programs.LoadToClient, &p.to, shared), loadShared(programs.LoadFromRelay, &p.back, shared))
}

// loadShared loads programs that have these maps in the place of their own, as far as they
// use them.
func loadShared(load func() (*ebpf.CollectionSpec, error), into any, shared map[string]*ebpf.Map) error {
	spec, err := load()
	if err != nil {
		return err
	}
	replaced := map[string]*ebpf.Map{}
	for name, m := range shared {
		if spec.Maps[name] != nil {
			replaced[name] = m
		}
	}
	return spec.LoadAndAssign(into, &ebpf.CollectionOptions{MapReplacements: replaced})
}

// inNode runs f in the node's network namespace.
func (p *Proxy) inNode(f func() error) error {
	if p.options.Node == nil {
		return f()
	}
	return namespace.Do(p.options.Node, f)
}

// Apply relays new connections of exactly these clients. Those that others have go on.
func (p *Proxy) Apply(ctx context.Context, clients []Client) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	wanted := map[int]bool{}
	var failed error
	for _, client := range clients {
		wanted[client.Interface] = true
		if err := p.admit(ctx, client); err != nil {
			failed = errors.Join(failed, fmt.Errorf("relaying the client at interface %d: %w", client.Interface, err))
		}
	}
	for index, r := range p.relays {
		if !wanted[index] {
			failed = errors.Join(failed, p.dismiss(index, r))
		}
	}
	return failed
}

func (p *Proxy) admit(ctx context.Context, client Client) error {
	r := p.relays[client.Interface]
	if r == nil {
		var err error
		if r, err = p.newRelay(client.Interface); err != nil {
			return err
		}
		p.relays[client.Interface] = r
	}
	return r.apply(ctx, client)
}

// dismiss closes a relay once it has no connection, or its client is gone.
func (p *Proxy) dismiss(index int, r *relay) error {
	if err := r.apply(context.Background(), Client{Interface: index}); err == nil && r.count() > 0 {
		return nil
	}
	delete(p.relays, index)
	return r.close()
}

// Connections counts those that are relayed, or about to be.
func (p *Proxy) Connections() (count int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.relays {
		count += r.count()
	}
	return count
}

// Run relays until the context ends, once.
func (p *Proxy) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = p.held.Close() })
	defer stop()
	for {
		record, err := p.held.Read()
		if errors.Is(err, ringbuf.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading held segments: %w", err)
		}
		p.begin(ctx, record.RawSample)
	}
}

func (p *Proxy) begin(ctx context.Context, sample []byte) {
	segment, err := parseHeld(sample)
	p.mu.Lock()
	r := p.relays[int(segment.key.Interface)]
	p.mu.Unlock()
	if r != nil {
		err = errors.Join(err, r.countRead(segment.key.Interface))
	}
	switch {
	case err != nil:
		p.options.Log.Error(err, "failed to read a held segment")
		_ = p.from.RelayedFlows.Delete(segment.key)
	case r == nil:
		_ = p.from.RelayedFlows.Delete(segment.key)
	default:
		r.begin(ctx, segment)
	}
}

// Drain relays no further connection, and waits until those that are relayed have ended or
// the context has.
func (p *Proxy) Drain(ctx context.Context) error {
	if err := p.from.Draining.Put(uint32(0), uint32(1)); err != nil {
		return fmt.Errorf("relaying no further connection: %w", err)
	}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for p.Connections() > 0 {
		p.tell()
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d connections were relayed still: %w", p.Connections(), ctx.Err())
		case <-ticker.C:
		}
	}
	return nil
}

// Close ends all connections, and leaves nothing on the node.
func (p *Proxy) Close() (failed error) {
	p.end()
	p.bounding.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for index, r := range p.relays {
		failed = errors.Join(failed, r.close())
		delete(p.relays, index)
	}
	if p.held != nil {
		failed = errors.Join(failed, p.held.Close())
	}
	if p.tracked != nil {
		failed = errors.Join(failed, p.tracked.Close())
	}
	return errors.Join(failed, p.from.Close(), p.to.Close(), p.back.Close())
}
