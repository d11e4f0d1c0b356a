// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// downs are the interfaces that were down, if only for a moment.
type downs struct {
	everything bool // messages were lost: it may have been any
	indexes    map[int]bool
}

func (d *downs) has(index int) bool { return d.everything || d.indexes[index] }

// downLog tells which interfaces went down since it was last asked. The kernel
// sends the message before it drops the interface's routes, so whoever reads the
// routes first and then the log knows why one is missing.
type downLog struct {
	socket *nl.NetlinkSocket
}

// read takes what is there, without waiting.
func (l downLog) read() (downs, error) {
	result := downs{indexes: map[int]bool{}}
	buffer := make([]byte, nl.RECEIVE_BUFFER_SIZE)
	for {
		length, _, err := unix.Recvfrom(l.socket.GetFd(), buffer, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return result, nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOBUFS):
			result.everything = true
		case err != nil:
			return result, fmt.Errorf("receiving changes of interfaces: %w", err)
		default:
			if err := result.note(buffer[:length]); err != nil {
				return result, err
			}
		}
	}
}

func (d *downs) note(data []byte) error {
	messages, err := syscall.ParseNetlinkMessage(data)
	if err != nil {
		return fmt.Errorf("reading changes of interfaces: %w", err)
	}
	for _, message := range messages {
		if len(message.Data) < unix.SizeofIfInfomsg {
			continue
		}
		info := nl.DeserializeIfInfomsg(message.Data)
		if info.Flags&working != working { // what is deleted is set down before
			d.indexes[int(info.Index)] = true
		}
	}
	return nil
}
