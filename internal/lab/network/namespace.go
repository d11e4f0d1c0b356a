// SPDX-License-Identifier: Apache-2.0

// Package network builds networks out of network namespaces: single ones, pairs
// joined by veth, and whole clusters of nodes, paths and pods. It needs root,
// touches nothing of the root namespace, and removes all that it made, also
// after its maker was killed.
package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Directory is where the kernel's tools look for named namespaces.
const Directory = "/run/netns"

// Namespace is a named network namespace.
type Namespace struct {
	// Name under Directory.
	Name string

	mu     sync.Mutex
	handle *netlink.Handle
}

// New makes a named network namespace with lo up and settings that suit both a
// node and a pod: MPTCP on, no reverse path filter, no duplicate address
// detection, IPv6 addresses that stay when a NIC goes down, and a congestion control
// that fills shaped links evenly.
func New(name string) (*Namespace, error) {
	if err := create(name); err != nil {
		return nil, fmt.Errorf("making network namespace %s: %w", name, err)
	}
	ns := &Namespace{Name: name}
	if err := ns.prepare(); err != nil {
		return nil, errors.Join(err, ns.Delete())
	}
	return ns, nil
}

// Open returns the namespace that has this name already.
func Open(name string) (*Namespace, error) {
	if _, err := os.Stat(filepath.Join(Directory, name)); err != nil {
		return nil, fmt.Errorf("opening network namespace: %w", err)
	}
	return &Namespace{Name: name}, nil
}

// create makes and names a namespace. The thread must come back: the process's
// first thread would not end with its goroutine, and keep the namespace.
func create(name string) error {
	if _, err := os.Lstat(filepath.Join(Directory, name)); err == nil {
		return os.ErrExist
	}
	if err := shareDirectory(); err != nil {
		return err
	}
	return andBack(func() error {
		created, err := netns.NewNamed(name)
		if err != nil {
			return errors.Join(err, remove(name))
		}
		return created.Close()
	})
}

// andBack runs f on a thread that f may move into a network namespace, and moves
// it back, also when f ends its goroutine.
func andBack(f func() error) (err error) {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("finding the thread's network namespace: %w", err)
	}
	defer func() {
		// A thread that cannot get back stays locked, and nobody else uses it.
		if back := netns.Set(home); back != nil {
			err = errors.Join(err, fmt.Errorf("leaving a network namespace: %w", back))
		} else {
			runtime.UnlockOSThread()
		}
		err = errors.Join(err, home.Close())
	}()
	return f()
}

var defaultSysctls = [][2]string{
	{"net.ipv4.conf.all.rp_filter", "0"},
	{"net.ipv4.conf.default.rp_filter", "0"},
	{"net.ipv4.conf.all.send_redirects", "0"},
	{"net.ipv4.conf.default.send_redirects", "0"},
	{"net.ipv4.ping_group_range", "0 2147483647"},
	{"net.ipv6.conf.all.accept_dad", "0"},
	{"net.ipv6.conf.default.accept_dad", "0"},
	{"net.ipv6.conf.default.accept_ra", "0"},
	{"net.ipv6.conf.all.keep_addr_on_down", "1"},
	{"net.ipv6.conf.default.keep_addr_on_down", "1"},
	{"net.mptcp.enabled", "1"},
}

func (ns *Namespace) prepare() error {
	for _, setting := range defaultSysctls {
		if err := ns.Sysctl(setting[0], setting[1]); err != nil {
			return err
		}
	}
	if err := ns.chooseCongestionControl(); err != nil {
		return err
	}
	return ns.SetUp("lo")
}

// chooseCongestionControl makes runs on different machines alike: cubic, or reno
// where the kernel keeps cubic from namespaces. Both fill a token bucket evenly;
// BBR, some kernels' default, does not.
func (ns *Namespace) chooseCongestionControl() error {
	const key = "net.ipv4.tcp_congestion_control"
	if ns.Sysctl(key, "cubic") == nil {
		return nil
	}
	return ns.Sysctl(key, "reno")
}

// Path is the namespace's file.
func (ns *Namespace) Path() string { return filepath.Join(Directory, ns.Name) }

// Do runs f on a thread that is inside the namespace. What f starts on other
// goroutines runs outside of it.
func (ns *Namespace) Do(f func() error) error { return doAt(ns.Path(), f) }

func doAt(file string, f func() error) error {
	target, err := netns.GetFromPath(file)
	if err != nil {
		return fmt.Errorf("opening network namespace %s: %w", file, err)
	}
	defer target.Close()
	return andBack(func() error {
		if err := netns.Set(target); err != nil {
			return fmt.Errorf("entering network namespace %s: %w", file, err)
		}
		return f()
	})
}

// Handle speaks rtnetlink with the namespace; Delete closes it.
func (ns *Namespace) Handle() (*netlink.Handle, error) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.handle != nil {
		return ns.handle, nil
	}
	target, err := netns.GetFromPath(ns.Path())
	if err != nil {
		return nil, fmt.Errorf("opening network namespace %s: %w", ns.Name, err)
	}
	defer target.Close()
	ns.handle, err = netlink.NewHandleAt(target, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening rtnetlink in network namespace %s: %w", ns.Name, err)
	}
	return ns.handle, nil
}

// Command is a command that runs inside the namespace. It enters by nsenter,
// because `ip netns exec` would hide /sys/fs/cgroup from it.
func (ns *Namespace) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + ns.Path(), "--", name}, args...)...)
}

// Run runs a command inside the namespace and returns what it printed.
func (ns *Namespace) Run(name string, args ...string) (string, error) {
	out, err := ns.Command(context.Background(), name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("running %s %s in %s: %w: %s", name, strings.Join(args, " "), ns.Name, err, out)
	}
	return string(out), nil
}

// Lose has the namespace drop what comes in of TCP and matches this, in nft's words, until goesOn is called.
func (ns *Namespace) Lose(match ...string) (goesOn func() error, err error) {
	for _, arguments := range [][]string{
		{"add", "table", "inet", "lose"},
		{"add", "chain", "inet", "lose", "input", "{ type filter hook input priority 0; }"},
		slices.Concat([]string{"add", "rule", "inet", "lose", "input", "tcp"}, match, []string{"drop"}),
	} {
		if _, err := ns.Run("nft", arguments...); err != nil {
			return nil, err
		}
	}
	return func() error {
		_, err := ns.Run("nft", "delete", "table", "inet", "lose")
		return err
	}, nil
}

// KernelCounter is one of the namespace's counters, by the name that nstat knows: MPTcpExtMPJoinSynRx.
func (ns *Namespace) KernelCounter(name string) (int, error) {
	out, err := ns.Run("nstat", "--ignore", "--zeros", "--noupdate", name)
	if err != nil {
		return 0, err
	}
	_, counted, _ := strings.Cut(out, name)
	fields := strings.Fields(counted)
	if len(fields) == 0 {
		return 0, fmt.Errorf("nstat does not tell %s in %s: %s", name, ns.Name, out)
	}
	count, err := strconv.Atoi(fields[0])
	if err != nil {
		return 0, fmt.Errorf("reading what nstat tells of %s in %s: %w", name, ns.Name, err)
	}
	return count, nil
}

// Listen opens a listening socket inside the namespace; a TCP listener is an
// MPTCP one.
func (ns *Namespace) Listen(ctx context.Context, family, address string) (net.Listener, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(true)
	var listener net.Listener
	err := ns.Do(func() (err error) {
		listener, err = config.Listen(ctx, family, address)
		return err
	})
	return listener, err
}

// Dial opens an MPTCP connection from inside the namespace. The address must be
// an IP address and a port, so that one thread opens the socket.
func (ns *Namespace) Dial(ctx context.Context, family, address string) (net.Conn, error) {
	return ns.DialBy(ctx, MPTCP, family, address)
}

// Protocol is that of a connection's socket.
type Protocol int

const (
	// MPTCP is what sockets of the lab are unless something else is said.
	MPTCP Protocol = iota
	// TCP is plain TCP.
	TCP
)

// DialBy is Dial for either protocol.
func (ns *Namespace) DialBy(ctx context.Context, protocol Protocol, family, address string) (net.Conn, error) {
	var dialer net.Dialer
	dialer.SetMultipathTCP(protocol == MPTCP)
	var connection net.Conn
	err := ns.Do(func() (err error) {
		connection, err = dialer.DialContext(ctx, family, address)
		return err
	})
	return connection, err
}

// Sysctl sets a setting of the namespace: a dotted name that begins with "net.".
// Settings that the whole machine shares do not exist inside of a namespace, and
// give an error. A name with a dotted NIC in it is not supported.
func (ns *Namespace) Sysctl(key, value string) error {
	if !strings.HasPrefix(key, "net.") {
		return fmt.Errorf("setting %s: not a setting of a network namespace", key)
	}
	file := filepath.Join("/proc/sys", strings.ReplaceAll(key, ".", "/"))
	err := ns.Do(func() error { return os.WriteFile(file, []byte(value), 0o644) })
	if err != nil {
		return fmt.Errorf("setting %s to %q in %s: %w", key, value, ns.Name, err)
	}
	return nil
}

// Delete removes the namespace and all interfaces in it. It is no error when it
// is gone already.
func (ns *Namespace) Delete() error {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.handle != nil {
		ns.handle.Close()
		ns.handle = nil
	}
	return remove(ns.Name)
}

func remove(name string) error {
	file := filepath.Join(Directory, name)
	err := unix.Unmount(file, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmounting network namespace %s: %w", name, err)
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing network namespace %s: %w", name, err)
	}
	return nil
}
