// SPDX-License-Identifier: Apache-2.0

// Package pathmanager gives the MPTCP connections of pods their subflows. It
// works in each pod's own network namespace, in one of two ways.
//
// Kernel leaves the work to the kernel's path manager, which goes on without the
// agent. A pod that listens announces its address with further ports, once one of its
// connections lasts, and a pod that connects opens a subflow to each. Both ends of a connection must not do
// both: a pod that listens therefore follows no announcements. The kernel opens
// no subflow again that has closed, and none on connections from before; while
// the agent runs, it makes the kernel do so, by adding for a moment an endpoint
// that stands for any local address. Connections that have their subflows are
// not touched by it. The same serves the connections that a listening pod itself
// begins, and IPv6, whose announcements with a port do not fit beside TCP
// timestamps before Linux 7.2: without the agent these have one subflow, but for
// IPv6 connections of pods that only connect, which have two, or more where the
// peer's IPv4 address is announced on them. Such an endpoint also makes the
// kernel try one subflow towards each client that has fewer than the limit, which
// the client's host refuses.
//
// Agent opens subflows from here, through the user-space path manager: for each
// connection that the pod began, from its own address to the address and port
// where the connection ends, and again when one closes. For the address of a
// Service that is the backend's. It can wait until a connection has lasted or
// moved enough, and can open subflows between all addresses of both pods.
package pathmanager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/crowd"
	"braid.dev/braid/agent/endpoints/namespace"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/mptcpnl"
	"braid.dev/braid/internal/room"
)

// Options of a Namespace.
type Options struct {
	// StatePath is a directory for what namespaces were like before, so that an
	// agent can put back what an earlier one changed.
	StatePath string
	// Proc is where a proc file system is mounted whose sys/net can be written;
	// empty means /proc.
	Proc string
	// Destination finds where the node translates the address to that a connection
	// of the pod goes to, as it does for Services, and false where it does not know
	// the connection. With nil, nothing is taken to be translated. It must be safe
	// for concurrent use.
	Destination func(local, remote netip.AddrPort) (netip.AddrPort, bool, error)
	// Room is for the connections of all pods; without one there is no bound.
	Room *room.Room
	// Crowd has connections that wait go on waiting while their tenant's others fill the
	// node's paths; without one they never do.
	Crowd *crowd.Rooms
	// Watcher tells of pods to whose events nobody listens and that announce nothing, by the
	// host's ends of their interfaces. Without either, events are always listened to, and
	// addresses always announced.
	Watcher    Watcher
	Interfaces []int
	// Log gets what cannot be returned.
	Log logr.Logger
}

// Namespace manages the paths of one pod's network namespace. The namespace
// lives at least as long as it is open.
type Namespace struct {
	options     Options
	file        *os.File
	identity    namespace.Identity
	sysctls     sysctls
	client      *mptcpnl.Client
	diagnostics *mptcpnl.Diagnostics

	// calls lets one Configure, Restore or Close run at a time.
	calls    sync.Mutex
	follower *follower
	owners   []string
	counts   *Counts

	// changes guards what follows, and changes of endpoints and limits.
	changes  sync.Mutex
	record   *record // nil while nothing is changed
	settings Settings
	// heard is true while a follower hears of each new listener, quiet once they were
	// also looked for.
	heard, quiet bool
	announcing   announcing
	pause        time.Duration // from one announcement to the next; 0 for the usual
}

// Open opens the network namespace of a file, such as /run/netns/NAME or
// /proc/PID/ns/net. It changes nothing.
func Open(path string, options Options) (*Namespace, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening network namespace: %w", err)
	}
	if options.Proc == "" {
		options.Proc = "/proc"
	}
	n := &Namespace{options: options, file: file, sysctls: sysctls{file: file, root: options.Proc}}
	if err := n.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("opening network namespace %s: %w", path, err), n.Close())
	}
	n.options.Log = options.Log.WithValues("networkNamespace", n.identity.String())
	return n, nil
}

func (n *Namespace) open() (err error) {
	if n.identity, err = namespace.Identify(n.file); err != nil {
		return err
	}
	if n.client, err = mptcpnl.Dial(int(n.file.Fd())); err != nil {
		return err
	}
	if n.diagnostics, err = mptcpnl.DialDiagnostics(int(n.file.Fd())); err != nil {
		return err
	}
	n.record, err = readRecord(n.options.StatePath, n.identity)
	return err
}

// Identity tells the namespace from others.
func (n *Namespace) Identity() namespace.Identity { return n.identity }

func (n *Namespace) newShare() *share {
	s := &share{room: n.options.Room, owners: n.owners, counts: cmp.Or(n.counts, &Counts{})}
	if len(n.owners) > 0 {
		s.crowd = n.options.Crowd.Of(n.owners[0])
	}
	return s
}

// share says who shares the room, the tenant and then the pod, and where to count what
// they do. It holds from the next settings on.
func (n *Namespace) share(counts *Counts, owners ...string) {
	n.calls.Lock()
	defer n.calls.Unlock()
	n.owners, n.counts = owners, counts
}

// Unmanaged is how many connections of the pod found no room at the last look, and
// since then; they stay as they are.
func (n *Namespace) Unmanaged() int64 {
	n.calls.Lock()
	defer n.calls.Unlock()
	if n.follower == nil {
		return 0
	}
	return n.follower.share.unmanaged.Load()
}

// changed is true while something is to be put back.
func (n *Namespace) changed() bool {
	n.changes.Lock()
	defer n.changes.Unlock()
	return n.record != nil
}

// Close stops following connections and leaves everything else as it is.
func (n *Namespace) Close() error {
	n.calls.Lock()
	defer n.calls.Unlock()
	n.stopFollowing()
	var failed error
	if n.client != nil {
		failed = errors.Join(failed, n.client.Close())
	}
	if n.diagnostics != nil {
		failed = errors.Join(failed, n.diagnostics.Close())
	}
	return errors.Join(failed, n.file.Close())
}

// Configure makes the namespace work as the settings say, and follows its
// connections until Close or Restore. With settings that it has already it
// changes nothing but what somebody else changed meanwhile. After an error some
// settings may be in force; Configure can be called again.
func (n *Namespace) Configure(_ context.Context, settings Settings) error {
	if err := settings.validate(); err != nil {
		return err
	}
	n.calls.Lock()
	defer n.calls.Unlock()
	same := reflect.DeepEqual(settings, n.settings)
	if !same {
		n.stopFollowing()
	}
	if err := n.change(settings); err != nil {
		return fmt.Errorf("configuring the path manager of %s: %w", n.identity, err)
	}
	if n.follower != nil || !settings.follows() {
		return nil
	}
	var err error
	if n.follower, err = follow(n, settings); err != nil {
		return errors.Join(err, n.announce(announcingAll)) // nobody sees whether one lasts
	}
	return nil
}

func (n *Namespace) change(settings Settings) error {
	n.changes.Lock()
	defer n.changes.Unlock()
	if err := n.sysctls.checkEnabled(); err != nil {
		return err
	}
	name, values, err := n.sysctls.pathManagerSetting()
	if err != nil {
		return err
	}
	if err := n.remember(name); err != nil {
		return err
	}
	n.settings = settings
	if n.follower == nil {
		n.announcing = n.announcingAtFirst(settings)
	}
	if err := n.sysctls.set(name, values[settings.Manager]); err != nil {
		return err
	}
	for _, b := range boundedSettings {
		if err := n.keep(b); err != nil {
			return err
		}
	}
	return n.apply()
}

// remember records what the namespace is like, before the first change.
func (n *Namespace) remember(setting string) error {
	if n.record != nil {
		return nil
	}
	value, err := n.sysctls.read(setting)
	if err != nil {
		return err
	}
	limits, err := n.client.Limits()
	if err != nil {
		return err
	}
	r := &record{Identity: n.identity, Limits: limits, Sysctls: map[string]string{setting: value}}
	if err := r.write(n.options.StatePath); err != nil {
		return err
	}
	n.record = r
	return nil
}

// apply sets the limits and endpoints that the settings want, where they differ.
// The caller holds changes.
func (n *Namespace) apply() error {
	if err := n.findListeners(); err != nil {
		return err
	}
	endpoints, err := n.client.Endpoints()
	if err != nil {
		return err
	}
	// One is left free for the endpoints that come and go.
	c := capabilities{
		listening: n.record.Listening, room: mptcpnl.MaxEndpoints - n.foreign(endpoints) - 1,
		announced: n.announced(endpoints), inUse: map[netip.AddrPort]bool{},
		announcing: n.announcing,
	}
	if c.announcesIPv6, err = n.sysctls.announcesIPv6(); err != nil {
		return err
	}
	if c.room <= 0 && n.settings.announces() && c.listening {
		return errors.New("no port can be announced: all endpoints of the namespace are in use by others")
	}
	if err := n.setLimits(n.settings.limits(c)); err != nil {
		return err
	}
	return n.setFreeEndpoints(endpoints, c)
}

// setFreeEndpoints sets the endpoints that the settings want, with other ports in
// the place of those that are in use.
func (n *Namespace) setFreeEndpoints(present []mptcpnl.Endpoint, c capabilities) error {
	all := len(n.settings.endpoints(c))
	var refused error
	for {
		wanted := n.settings.endpoints(c)
		var inUse *portInUseError
		err := n.setEndpoints(present, wanted)
		switch {
		case errors.As(err, &inUse):
			refused, c.inUse[inUse.at] = err, true
		case err != nil:
			return err
		case len(wanted) < all:
			return refused
		default:
			return nil
		}
		if present, err = n.client.Endpoints(); err != nil {
			return err
		}
	}
}

// portInUseError says that a port cannot be announced.
type portInUseError struct {
	at     netip.AddrPort
	reason error
}

func (e *portInUseError) Error() string { return e.reason.Error() }

func (e *portInUseError) Unwrap() error { return e.reason }

func (n *Namespace) add(endpoint mptcpnl.Endpoint) error {
	err := n.client.AddEndpoint(endpoint)
	if endpoint.Port != 0 && errors.Is(err, unix.EADDRINUSE) {
		return &portInUseError{netip.AddrPortFrom(endpoint.Address, endpoint.Port), err}
	}
	return err
}

// findListeners notes if an MPTCP socket listens. A pod that once listened is
// taken for one that does: to take its announcements back for the time of a
// restart would cost the connections that are made just then.
func (n *Namespace) findListeners() error {
	if n.record.Listening || n.quiet || n.settings.Manager != v1alpha1.SubflowManagerKernel {
		return nil
	}
	listens := false
	if err := n.diagnostics.EachListener(func(netip.AddrPort) bool { listens = true; return false }); err != nil {
		return err
	}
	if !listens {
		n.quiet = n.heard
		return nil
	}
	n.record.Listening = true
	return n.record.write(n.options.StatePath)
}

// hear says whether a follower hears of events from now on, with those of listeners
// among them where the kernel has these. Listeners that came until now are looked for
// once more: the kernel goes through the sockets of all namespaces for that, so it is
// not done without need.
func (n *Namespace) hear(events bool) {
	n.changes.Lock()
	defer n.changes.Unlock()
	n.heard, n.quiet = events && mptcpnl.TellsOfListeners(), false
}

// listens is true once a socket of the pod has listened.
func (n *Namespace) listens() bool {
	n.changes.Lock()
	defer n.changes.Unlock()
	return n.record != nil && n.record.Listening
}

func (n *Namespace) setLimits(limits mptcpnl.Limits) error {
	before, err := n.client.Limits()
	if err != nil || before == limits {
		return err
	}
	return n.client.SetLimits(limits)
}

// setEndpoints turns the endpoints that are ours into those that are wanted.
func (n *Namespace) setEndpoints(present, wanted []mptcpnl.Endpoint) error {
	// The endpoints for any address come and go; they are always ours.
	ours := append(slices.Clone(wanted), anyIPv4, anyIPv6)
	if err := n.recordEndpoints(append(slices.Clone(n.record.Endpoints), ours...)); err != nil {
		return err
	}
	for _, endpoint := range present {
		if !n.isOurs(endpoint) || slices.ContainsFunc(wanted, endpointLike(endpoint)) {
			continue
		}
		if err := n.client.DeleteEndpoint(endpoint.ID); err != nil {
			return err
		}
	}
	if err := n.addThose(present, wanted); err != nil {
		return err
	}
	return n.recordEndpoints(ours)
}

// announcePause is from one announcement to the next. The kernel makes each at once on all
// connections that there are, and a peer that has not handled the one before drops it: it is
// repeated 200 ms later, by Linux before 6.18 after minutes. leavePause is where no agent will
// help then.
const (
	announcePause = 2 * time.Millisecond
	leavePause    = 50 * time.Millisecond
)

// addThose adds the endpoints that are wanted and not present.
func (n *Namespace) addThose(present, wanted []mptcpnl.Endpoint) error {
	added := false
	for _, endpoint := range wanted {
		if slices.ContainsFunc(present, endpointLike(endpoint)) {
			continue
		}
		if added {
			time.Sleep(cmp.Or(n.pause, announcePause))
		}
		if err := n.add(endpoint); err != nil {
			return err
		}
		added = true
	}
	return nil
}

// recordEndpoints writes what endpoints may be ours.
func (n *Namespace) recordEndpoints(endpoints []mptcpnl.Endpoint) error {
	var unique []mptcpnl.Endpoint
	for _, endpoint := range endpoints {
		if !slices.Contains(unique, endpoint) {
			unique = append(unique, endpoint)
		}
	}
	if slices.Equal(unique, n.record.Endpoints) {
		return nil
	}
	n.record.Endpoints = unique
	return n.record.write(n.options.StatePath)
}

// endpointLike compares endpoints, but for the ID that the kernel gave.
func endpointLike(a mptcpnl.Endpoint) func(mptcpnl.Endpoint) bool {
	return func(b mptcpnl.Endpoint) bool {
		return a.Address == b.Address && a.Port == b.Port && a.Flags == b.Flags
	}
}

func (n *Namespace) isOurs(endpoint mptcpnl.Endpoint) bool {
	return n.record != nil && slices.ContainsFunc(n.record.Endpoints, endpointLike(endpoint))
}

// announced are the ports of the endpoints that are ours.
func (n *Namespace) announced(endpoints []mptcpnl.Endpoint) map[netip.AddrPort]bool {
	announced := map[netip.AddrPort]bool{}
	for _, endpoint := range endpoints {
		if n.isOurs(endpoint) {
			announced[netip.AddrPortFrom(endpoint.Address, endpoint.Port)] = true
		}
	}
	return announced
}

func (n *Namespace) foreign(endpoints []mptcpnl.Endpoint) (count int) {
	for _, endpoint := range endpoints {
		if !n.isOurs(endpoint) {
			count++
		}
	}
	return count
}

// Restore stops following connections and puts back what the namespace was like
// before the first Configure, also that of an earlier agent. Connections keep
// the subflows that they have; but the kernel closes IPv4 subflows of an IPv6
// connection together with the announcement that they follow.
func (n *Namespace) Restore(_ context.Context) error {
	n.calls.Lock()
	defer n.calls.Unlock()
	n.stopFollowing()
	n.changes.Lock()
	defer n.changes.Unlock()
	if n.record == nil {
		return nil
	}
	if err := n.putBack(); err != nil {
		return fmt.Errorf("restoring the path manager of %s: %w", n.identity, err)
	}
	n.record, n.settings, n.announcing = nil, Settings{}, announcingAll
	return Forget(n.options.StatePath, n.identity)
}

func (n *Namespace) putBack() error {
	present, err := n.client.Endpoints()
	if err != nil {
		return err
	}
	used := map[netip.Addr]bool{}
	for _, endpoint := range present {
		used[endpoint.Address] = false
	}
	if err := n.diagnostics.EachSubflow(func(s *mptcpnl.Subflow) bool {
		if _, asked := used[s.Local.Addr().Unmap()]; asked {
			used[s.Local.Addr().Unmap()] = true
		}
		return true
	}); err != nil {
		return err
	}
	for _, endpoint := range present {
		if !n.isOurs(endpoint) && !isUnusedImplicit(endpoint, used) {
			continue
		}
		if err := n.client.DeleteEndpoint(endpoint.ID); err != nil {
			return err
		}
	}
	if err := n.setLimits(n.record.Limits); err != nil {
		return err
	}
	for name, value := range n.record.Sysctls {
		if err := n.sysctls.set(name, value); err != nil {
			return err
		}
	}
	return nil
}

// isUnusedImplicit: the kernel made the endpoint for a subflow from an address that
// the connection did not begin with, and would keep it for ever. To remove one in
// use would close its subflows.
func isUnusedImplicit(endpoint mptcpnl.Endpoint, used map[netip.Addr]bool) bool {
	return endpoint.Flags&mptcpnl.FlagImplicit != 0 && !used[endpoint.Address]
}

func (n *Namespace) stopFollowing() {
	if n.follower != nil {
		n.follower.stop()
		n.follower = nil
	}
}
