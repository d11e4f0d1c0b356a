// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From include/uapi/linux/mptcp.h; neither the standard library nor x/sys has
// them.
const (
	solMPTCP       = 284
	mptcpTCPInfo   = 2
	subflowDataLen = 16
)

// observe tells how many subflows a connection has, and whether it is MPTCP. A
// connection that fell back to TCP has one.
func observe(connection *net.TCPConn) (subflows int, multipath bool) {
	multipath, err := connection.MultipathTCP()
	if err != nil || !multipath {
		return 1, false
	}
	raw, err := connection.SyscallConn()
	if err != nil {
		return 0, multipath
	}
	count := 0
	err = raw.Control(func(fd uintptr) { count, _ = countSubflows(int(fd)) })
	if err != nil {
		return 0, multipath
	}
	return count, multipath
}

// countSubflows asks for struct mptcp_subflow_data, which begins an answer about
// each subflow, with no room for the rest.
func countSubflows(fd int) (int, error) {
	var data [subflowDataLen]byte
	binary.NativeEndian.PutUint32(data[0:], subflowDataLen)
	length := uint32(len(data))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), solMPTCP, mptcpTCPInfo,
		uintptr(unsafe.Pointer(&data)), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return 0, fmt.Errorf("reading MPTCP_TCPINFO: %w", errno)
	}
	return int(binary.NativeEndian.Uint32(data[4:])), nil
}

// setCongestion chooses the congestion control of all subflows of a connection.
func setCongestion(connection *net.TCPConn, algorithm string) error {
	if algorithm == "" {
		return nil
	}
	raw, err := connection.SyscallConn()
	if err != nil {
		return fmt.Errorf("reaching the socket: %w", err)
	}
	var refused error
	err = raw.Control(func(fd uintptr) {
		refused = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, algorithm)
	})
	if err := errors.Join(err, refused); err != nil {
		return fmt.Errorf("choosing congestion control %q: %w", algorithm, err)
	}
	return nil
}
