// SPDX-License-Identifier: Apache-2.0

package guestagent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"braid.dev/braid/api/v1alpha1"
)

// place is where a guest's agent is reached: at a socket of QEMU's own, or by way of libvirt.
type place struct {
	// Socket is its path below the directory of guest agents' sockets, or below kubelet's of pods.
	Socket string `json:"socket"`
	// Domain is the machine's name with the libvirt that has this socket; empty without libvirt.
	Domain string `json:"domain,omitempty"`
	// InPod: the socket is that of the libvirt in a pod, which runs one machine.
	InPod bool `json:"inPod,omitempty"`
}

// libvirtOfPod is where KubeVirt's pods have their libvirt's socket on the node, below the pod's
// own directory: at /var/run/libvirt in the pod is a volume of the kind emptyDir.
const libvirtOfPod = "volumes/kubernetes.io~empty-dir/libvirt-runtime/virtqemud-sock"

// placeOf is where the agent of an endpoint's guest is reached, if it is to be.
func placeOf(e *v1alpha1.PlanEndpoint) (at place, wanted bool) {
	switch {
	case e.Guest != nil:
		return place{Socket: e.Guest.AgentSocket, Domain: e.Guest.AgentDomain}, e.Guest.AgentSocket != ""
	case e.HoldsVirtualMachine() && e.VirtualMachine.GuestAgent:
		return place{Socket: path.Join(string(e.UID), libvirtOfPod), InPod: true}, true
	}
	return place{}, false
}

// errGone is of machines that are not there.
var errGone = errors.New("no machine has the guest agent's socket")

// errHeld is of sockets where nobody answers: QEMU serves one client of each at a time.
var errHeld = errors.New("no answer: either no qemu-guest-agent runs in the guest, or something else holds the socket open, as libvirt does with its own")

// Told where the chart names no directory.
var (
	errNoDirectory = errors.New("this node's agent knows no directory of guest agents' sockets: set agent.guestAgentDirectory in the chart")
	errNoPods      = errors.New("this node's agent knows no directory of pods, below which KubeVirt's have libvirt's socket: set agent.podsDirectory in the chart")
)

// with talks to the agent at a place, for as long as an exchange may take.
func (p *Part) with(ctx context.Context, at place, talk func(*channel) error) error {
	directory, unknown := p.options.Sockets, errNoDirectory
	if at.InPod {
		directory, unknown = p.options.Pods, errNoPods
	}
	if directory == "" {
		return unknown
	}
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	connection, err := dial(ctx, directory, at.Socket)
	if err != nil {
		return err
	}
	defer connection.Close()
	stop := context.AfterFunc(ctx, func() { _ = connection.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	by, err := at.greet(connection)
	if err != nil {
		return err
	}
	return talk(newChannel(by))
}

// greet begins a conversation with what is at the place.
func (at place) greet(connection net.Conn) (conversation, error) {
	if at.InPod || at.Domain != "" {
		return openDomain(connection, at.Domain)
	}
	l := newLine(connection)
	return l, l.synchronize()
}

// dial connects to a socket below a directory. Nothing on the way may be a symbolic link:
// who can write there, as QEMU can, is not to lead the agent elsewhere.
func dial(ctx context.Context, directory, name string) (net.Conn, error) {
	root, err := unix.Open(directory, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("%w: there is no directory %s", errGone, directory)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the directory of guest agents' sockets: %w", err)
	}
	defer unix.Close(root)
	socket, err := unix.Openat2(root, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("%w: there is no %s", errGone, name)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the guest agent's socket %s: %w", name, err)
	}
	defer unix.Close(socket)
	var is unix.Stat_t
	if err := unix.Fstat(socket, &is); err != nil {
		return nil, fmt.Errorf("looking at the guest agent's socket %s: %w", name, err)
	}
	if is.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, fmt.Errorf("looking at the guest agent's socket %s: it is no socket", name)
	}
	connection, err := new(net.Dialer).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", socket))
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return nil, fmt.Errorf("%w: nobody listens at %s", errGone, name)
	case errors.Is(err, unix.EAGAIN):
		return nil, errHeld
	case err != nil:
		return nil, fmt.Errorf("connecting to the guest agent's socket %s: %w", name, err)
	}
	return connection, nil
}
