// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/mptcpnl"
)

// Footprint describes everything on the nodes and in the pods that Braid could
// have put there: TC programs and filters, queueing disciplines, routing rules,
// routes, pinned objects and kept state, and the pods' MPTCP settings. Two of
// them are equal if nothing of that differs.
func (l *Lab) Footprint() ([]string, error) {
	var lines []string
	for _, node := range l.Network.Nodes {
		of, err := l.nodeFootprint(node)
		if err != nil {
			return nil, err
		}
		lines = append(lines, of...)
		for _, pod := range node.Pods {
			of, err := podFootprint(pod)
			if err != nil {
				return nil, err
			}
			lines = append(lines, of...)
		}
	}
	slices.Sort(lines)
	return lines, nil
}

// Difference lists the lines that only the second footprint has, and those that
// only the first one has.
func Difference(before, after []string) (more, less []string) {
	missingIn := func(lines, in []string) (missing []string) {
		for _, line := range lines {
			if !slices.Contains(in, line) {
				missing = append(missing, line)
			}
		}
		return missing
	}
	return missingIn(after, before), missingIn(before, after)
}

func (l *Lab) nodeFootprint(node *network.Node) ([]string, error) {
	lines, err := namespaceFootprint(node.Namespace)
	if err != nil {
		return nil, err
	}
	for _, directory := range []string{l.PinPath(node.NodeName()), l.StatePath(node.NodeName()), l.SavedPath(node.NodeName())} {
		files, err := filesIn(directory)
		if err != nil {
			return nil, err
		}
		lines = append(lines, files...)
	}
	return lines, nil
}

// filesIn lists files alone: an empty directory is no trace, and a socket is there
// while its process is.
func filesIn(directory string) (files []string, err error) {
	err = filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && !entry.IsDir() && entry.Type() != fs.ModeSocket {
			files = append(files, "file "+path)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing files: %w", err)
	}
	return files, nil
}

func podFootprint(pod *network.Pod) ([]string, error) {
	lines, err := namespaceFootprint(pod.Namespace)
	if err != nil {
		return nil, err
	}
	mptcp, err := mptcpFootprint(pod.Namespace)
	return append(lines, mptcp...), err
}

// mptcpFootprint lists the endpoints, limits and settings of the MPTCP stack.
func mptcpFootprint(ns *network.Namespace) (lines []string, err error) {
	err = ns.Do(func() error {
		pm, err := mptcpnl.Dial(0)
		if err != nil {
			return err
		}
		defer pm.Close()
		endpoints, err := pm.Endpoints()
		if err != nil {
			return err
		}
		for _, endpoint := range endpoints {
			lines = append(lines, fmt.Sprintf("%s: MPTCP endpoint %v", ns.Name, endpoint))
		}
		limits, err := pm.Limits()
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("%s: MPTCP limits %+v", ns.Name, limits))
		settings, err := mptcpSettings(ns.Name)
		lines = append(lines, settings...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the MPTCP settings of %s: %w", ns.Name, err)
	}
	return lines, nil
}

func mptcpSettings(name string) (lines []string, err error) {
	files, err := filepath.Glob("/proc/sys/net/mptcp/*")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		value, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		lines = append(lines, fmt.Sprintf("%s: net.mptcp.%s = %s", name, filepath.Base(file), strings.TrimSpace(string(value))))
	}
	return lines, nil
}

// namespaceFootprint looks at all interfaces, rules and routes.
func namespaceFootprint(ns *network.Namespace) (lines []string, err error) {
	err = ns.Do(func() error {
		handle, err := netlink.NewHandleAt(netns.None())
		if err != nil {
			return err
		}
		defer handle.Close()
		for _, part := range []func(*netlink.Handle) ([]string, error){links, routes} {
			found, err := part(handle)
			if err != nil {
				return err
			}
			lines = append(lines, found...)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the state of network namespace %s: %w", ns.Name, err)
	}
	for i, line := range lines {
		lines[i] = ns.Name + ": " + line
	}
	return lines, nil
}

func links(handle *netlink.Handle) (lines []string, err error) {
	interfaces, err := handle.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	for _, nic := range interfaces {
		name := nic.Attrs().Name
		attached, err := attached(nic.Attrs().Index)
		if err != nil {
			return nil, fmt.Errorf("listing the programs of %s: %w", name, err)
		}
		disciplines, err := disciplines(handle, nic)
		if err != nil {
			return nil, fmt.Errorf("listing what is queued on %s: %w", name, err)
		}
		for _, thing := range append(attached, disciplines...) {
			lines = append(lines, name+" "+thing)
		}
	}
	return lines, nil
}

// attached lists TCX programs; a kernel before 6.6 has none.
func attached(index int) (lines []string, err error) {
	for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		result, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: hook})
		if errors.Is(err, ebpf.ErrNotSupported) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		for _, program := range result.Programs {
			lines = append(lines, fmt.Sprintf("%v program %d", hook, program.ID))
		}
	}
	return lines, nil
}

func disciplines(handle *netlink.Handle, nic netlink.Link) (lines []string, err error) {
	found, err := handle.QdiscList(nic)
	if err != nil {
		return nil, err
	}
	for _, discipline := range found {
		lines = append(lines, "qdisc "+discipline.Type())
	}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := handle.FilterList(nic, parent)
		if err != nil {
			return nil, err
		}
		for _, filter := range filters {
			lines = append(lines, fmt.Sprintf("%s filter %v", filter.Type(), filter.Attrs()))
		}
	}
	return lines, nil
}

// routes lists rules and the routes of all tables but those the kernel fills.
func routes(handle *netlink.Handle) (lines []string, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		rules, err := handle.RuleList(family)
		if err != nil {
			return nil, fmt.Errorf("listing rules: %w", err)
		}
		for _, rule := range rules {
			lines = append(lines, fmt.Sprintf("rule %v", rule))
		}
		found, err := handle.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, fmt.Errorf("listing routes: %w", err)
		}
		for _, route := range found {
			if route.Protocol != netlink.RouteProtocol(2) { // RTPROT_KERNEL
				lines = append(lines, fmt.Sprintf("route %v", route))
			}
		}
	}
	return lines, nil
}
