// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/endpoints/namespace"
	"braid.dev/braid/bpf/transport"
)

// askedOf are the options of the settings that sockets tell of as numbers.
var askedOf = map[int]struct{ level, option int }{
	transport.SettingUserTimeout:       {unix.SOL_TCP, unix.TCP_USER_TIMEOUT},
	transport.SettingKeepaliveIdle:     {unix.SOL_TCP, unix.TCP_KEEPIDLE},
	transport.SettingKeepaliveInterval: {unix.SOL_TCP, unix.TCP_KEEPINTVL},
	transport.SettingKeepaliveProbes:   {unix.SOL_TCP, unix.TCP_KEEPCNT},
	transport.SettingKeepalive:         {unix.SOL_SOCKET, unix.SO_KEEPALIVE},
}

// startUsual notes what a socket of the pod has that nobody has changed, and what it gets, so
// that connections need no note of their own while they are young. It is for when all sockets of
// earlier settings have been swept.
func (p *Part) startUsual(cookie uint64, one *pod) error {
	if !hasUsual(one) {
		return p.endUsual(cookie)
	}
	usual, err := usualOf(one.path, &one.settings)
	if namespace.IsGone(err) {
		return nil // the pod has ended
	}
	if err != nil {
		return fmt.Errorf("failed to learn what the pod's sockets have by themselves: %w", err)
	}
	if err := p.loaded.Value.TransportUsual.Put(cookie, usual); err != nil {
		return fmt.Errorf("failed to note what the pod's sockets have by themselves: %w", err)
	}
	return nil
}

// hasUsual: receive buffers come before the SYN and grow by themselves, and credits lie with
// each connection from its first segment on.
func hasUsual(one *pod) bool {
	return one.settings.Given&(1<<transport.SettingReceiveBuffer) == 0 && one.exchange.Flags&exchangeCredits == 0
}

// noteAll gives each socket that has none a note of its own, and has new ones begin with one: the
// next agent may be an earlier one, which would take what a policy gave to such a socket for its own.
func (p *Part) noteAll() (failed error) {
	if !p.loaded.Is() {
		return nil
	}
	for cookie, one := range p.pods {
		if err := p.noteYoung(cookie, one.path); err != nil {
			failed = errors.Join(failed, fmt.Errorf("failed to note what sockets of pod %s had before: %w", one.uid, err))
		}
	}
	return failed
}

// noteYoung leaves the entry: what begins at this moment still needs it.
func (p *Part) noteYoung(cookie uint64, path string) error {
	var usual transport.TransportOwn
	err := p.loaded.Value.TransportUsual.Lookup(cookie, &usual)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	usual.Revision = 0 // that of no settings
	if err == nil {
		err = p.loaded.Value.TransportUsual.Put(cookie, &usual)
	}
	if err != nil {
		return fmt.Errorf("having new sockets begin with a note: %w", err)
	}
	return p.sweep(path)
}

// endUsual is for when no socket is left that has no note of its own.
func (p *Part) endUsual(cookie uint64) error {
	if err := p.loaded.Value.TransportUsual.Delete(cookie); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("failed to forget what the pod's sockets have by themselves: %w", err)
	}
	return nil
}

// usualOf asks a new socket of the pod.
func usualOf(path string, settings *transport.TransportSettings) (*transport.TransportOwn, error) {
	usual := &transport.TransportOwn{
		Set:      settings.Given &^ (1<<transport.SettingInitialWindow | 1<<transport.SettingExchange),
		Revision: settings.Revision, Given: settings.Value, GivenCongestionControl: settings.CongestionControl,
	}
	usual.Given[transport.SettingInitialWindow] = 0 // there it is what the peer is asked for
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening a network namespace: %w", err)
	}
	defer file.Close()
	return usual, namespace.Do(file, func() error { return learn(usual) })
}

// learn asks a socket of the thread's namespace.
func learn(usual *transport.TransportOwn) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("making a socket: %w", err)
	}
	defer unix.Close(socket)
	for setting, of := range askedOf {
		value, err := unix.GetsockoptInt(socket, of.level, of.option)
		if err != nil {
			return fmt.Errorf("asking a socket for %s: %w", fields[setting], err)
		}
		usual.Value[setting] = uint32(value)
	}
	name, err := unix.GetsockoptString(socket, unix.SOL_TCP, unix.TCP_CONGESTION)
	usual.CongestionControl.Name = nameOf(name)
	if err != nil {
		return fmt.Errorf("asking a socket for its congestion control: %w", err)
	}
	return nil
}
