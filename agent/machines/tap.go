// SPDX-License-Identifier: Apache-2.0

package machines

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// mostReads is how much of a pod's list of interfaces is read, in buffers of the kernel's. A
// pod may have any number of them.
const mostReads = 16

// usesTap tells whether the network namespace at a path has a tap that a program holds
// open. Bridges, Kata Containers and KubeVirt alike join a guest by one.
func usesTap(path string) (bool, error) {
	inside, err := netns.GetFromPath(path)
	if err != nil {
		return false, fmt.Errorf("opening a network namespace: %w", err)
	}
	defer inside.Close()
	socket, err := nl.GetNetlinkSocketAt(inside, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return false, fmt.Errorf("opening rtnetlink in a pod: %w", err)
	}
	defer socket.Close()
	if err := socket.SetReceiveTimeout(&nl.SocketTimeoutTv); err != nil {
		return false, fmt.Errorf("setting the time-out for listing a pod's interfaces: %w", err)
	}
	if err := socket.Send(listOfTuns()); err != nil {
		return false, fmt.Errorf("asking for a pod's interfaces: %w", err)
	}
	for range mostReads {
		messages, _, err := socket.Receive()
		if err != nil {
			return false, fmt.Errorf("listing a pod's interfaces: %w", err)
		}
		for i := range messages {
			switch message := &messages[i]; message.Header.Type {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				return false, nil
			case unix.RTM_NEWLINK:
				if isUsedTap(message.Data) {
					return true, nil
				}
			}
		}
	}
	return false, nil
}

// listOfTuns has the kernel leave out interfaces of other kinds.
func listOfTuns() *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("tun"))
	request.AddData(info)
	return request
}

// isUsedTap goes by the carrier, which a tap has while a program holds it open.
func isUsedTap(message []byte) bool {
	link, err := netlink.LinkDeserialize(nil, message)
	if err != nil {
		return false
	}
	tap, ok := link.(*netlink.Tuntap)
	return ok && tap.Mode == netlink.TUNTAP_MODE_TAP && tap.RawFlags&unix.IFF_LOWER_UP != 0
}
