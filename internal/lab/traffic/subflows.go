// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Subflow is what the kernel knows of one subflow, as its socket's end sees it.
type Subflow struct {
	Local, Remote netip.AddrPort
	// Sent is the payload that the peer has acknowledged, Received what came in order,
	// in bytes.
	Sent, Received uint64
	// RTT is the smoothed round-trip time.
	RTT time.Duration
	// Window is the congestion window in segments.
	Window uint32
	// Retransmitted segments so far.
	Retransmitted uint32
}

// From include/uapi/linux/mptcp.h.
const (
	mptcpSubflowAddrs = 3
	sizeOfAddress     = 128 // struct sockaddr_storage
	mostSubflows      = 8
	// A subflow that comes or goes between two questions makes their answers
	// disagree; they are asked again.
	subflowQuestions = 5
)

var errDisagree = errors.New("the connection's subflows changed meanwhile")

// Subflows lists the subflows of an MPTCP connection, the first one first as long as
// it is there.
func Subflows(connection *net.TCPConn) (subflows []Subflow, err error) {
	raw, err := connection.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("reaching the socket: %w", err)
	}
	for range subflowQuestions {
		var failed error
		err = raw.Control(func(fd uintptr) { subflows, failed = subflowsOf(int(fd)) })
		if err = errors.Join(err, failed); !errors.Is(err, errDisagree) {
			return subflows, err
		}
	}
	return nil, err
}

func subflowsOf(fd int) ([]Subflow, error) {
	addresses, err := askSubflows(fd, mptcpSubflowAddrs, 2*sizeOfAddress)
	if err != nil {
		return nil, err
	}
	infos, err := askSubflows(fd, mptcpTCPInfo, int(unsafe.Sizeof(unix.TCPInfo{})))
	if err != nil {
		return nil, err
	}
	again, err := askSubflows(fd, mptcpSubflowAddrs, 2*sizeOfAddress)
	if err != nil {
		return nil, err
	}
	if len(addresses) != len(infos) || len(again) != len(infos) {
		return nil, errDisagree
	}
	subflows := make([]Subflow, len(infos))
	for i, info := range infos {
		subflow := describe(addresses[i], info)
		if subflow.Local != addrPort(again[i]) {
			return nil, errDisagree
		}
		subflows[i] = subflow
	}
	return subflows, nil
}

func describe(addresses, info []byte) Subflow {
	tcp := (*unix.TCPInfo)(unsafe.Pointer(&info[0]))
	return Subflow{
		Local: addrPort(addresses), Remote: addrPort(addresses[sizeOfAddress:]),
		Sent: tcp.Bytes_acked, Received: tcp.Bytes_received,
		RTT: time.Duration(tcp.Rtt) * time.Microsecond, Window: tcp.Snd_cwnd, Retransmitted: tcp.Total_retrans,
	}
}

// addrPort reads struct sockaddr_in or sockaddr_in6.
func addrPort(address []byte) netip.AddrPort {
	port := binary.BigEndian.Uint16(address[2:])
	if binary.NativeEndian.Uint16(address) == unix.AF_INET6 {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(address[8:24])).Unmap(), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(address[4:8])), port)
}

// askSubflows asks an option that answers with struct mptcp_subflow_data and as many
// structures as there are subflows.
func askSubflows(fd, option, size int) ([][]byte, error) {
	answer := make([]byte, subflowDataLen+mostSubflows*size)
	binary.NativeEndian.PutUint32(answer[0:], subflowDataLen)
	binary.NativeEndian.PutUint32(answer[12:], uint32(size))
	length := uint32(len(answer))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), solMPTCP, uintptr(option),
		uintptr(unsafe.Pointer(&answer[0])), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return nil, fmt.Errorf("asking for the connection's subflows: %w", errno)
	}
	count := min(int(binary.NativeEndian.Uint32(answer[4:])), mostSubflows)
	subflows := make([][]byte, count)
	for i := range subflows {
		subflows[i] = answer[subflowDataLen+i*size:][:size]
	}
	return subflows, nil
}
