// SPDX-License-Identifier: Apache-2.0

// Package leftovers lists what Braid has put on a node, whichever agent did, so that
// an uninstall can be checked. It changes nothing.
package leftovers

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/agent/saved"
	"braid.dev/braid/internal/relayed"
)

// Kind of what is left.
type Kind string

// Kinds.
const (
	Pin       Kind = "Pin"       // on the BPF file system
	Program   Kind = "Program"   // at a hook of an interface
	Interface Kind = "Interface" // of the paths' queues, and of relays
	Rule      Kind = "Rule"      // of policy routing
	Route     Kind = "Route"     // of the table of detours
	Neighbour Kind = "Neighbour"
	Namespace Kind = "Namespace" // of a pod whose settings are others
	File      Kind = "File"      // in the directories of states and of what is saved
)

// Left is one thing that Braid has put on the node.
type Left struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
	// Detail says more, such as the interface of a program.
	Detail string `json:"detail,omitempty"`
}

// Options say where agents keep what they know.
type Options struct {
	PinPath, StatePath, SavedPath string
}

// Find lists what there is, in the calling thread's network namespace and in the
// agent's directories. What can be listed is, also where something else cannot.
func Find(options Options) ([]Left, error) {
	left := []Left{}
	var failed error
	for _, find := range []func(Options) ([]Left, error){pins, programs, rules, routes, neighbours, files, savedFile} {
		found, err := find(options)
		left, failed = append(left, found...), errors.Join(failed, err)
	}
	slices.SortStableFunc(left, func(a, b Left) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Detail, b.Detail))
	})
	return left, failed
}

// pins lists the parts of the datapath that have something pinned.
func pins(options Options) (left []Left, err error) {
	counts := map[string]int{}
	err = filepath.WalkDir(options.PinPath, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		relative, err := filepath.Rel(options.PinPath, path)
		part, _, _ := strings.Cut(relative, string(filepath.Separator))
		counts[part]++
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("looking for pins: %w", err)
	}
	for part, count := range counts {
		left = append(left, Left{Pin, filepath.Join(options.PinPath, part), fmt.Sprintf("%d maps, links and programs", count)})
	}
	return left, nil
}

// ownPrograms are the names of those that are attached to interfaces.
var ownPrograms = []string{"from_endpoint", "to_endpoint", "from_uplink", "to_uplink", "to_tunnel", "own_source", "unparsable", "hold_addresses", "meter", "name_sender", "leave_queue", "from_guest", "to_guest", "ask_peers", "note_arrival", "from_client", "to_client", "from_relay", "at_nic"}

var (
	ownInterface = regexp.MustCompile("^(" + paths.QueuePrefix + "|" + paths.QueueEndPrefix + "|" + relayed.InterfacePrefix + ")[0-9]+$")
	directions   = []attach.Hook{{Name: "ingress", Type: ebpf.AttachTCXIngress}, {Name: "egress", Type: ebpf.AttachTCXEgress}}
)

// filterPrefix is that of the names of our filters.
const filterPrefix = "braid_"

// programs lists the interfaces of queues, and the programs on all interfaces.
func programs(Options) (left []Left, err error) {
	devices, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	for _, device := range devices {
		name := device.Attrs().Name
		if ownInterface.MatchString(name) {
			left = append(left, Left{Kind: Interface, Name: name})
		}
		if xdp := device.Attrs().Xdp; xdp != nil && xdp.Attached {
			if program := attach.NameOf(ebpf.ProgramID(xdp.ProgId)); slices.Contains(ownPrograms, program) {
				left = append(left, Left{Program, program, name + " xdp"})
			}
		}
		for _, hook := range directions {
			found, err := programsAt(device.Attrs().Index, hook)
			if err != nil {
				return left, err
			}
			for _, program := range found {
				left = append(left, Left{Program, program, name + " " + hook.Name})
			}
		}
	}
	return left, nil
}

func programsAt(index int, hook attach.Hook) (names []string, err error) {
	query, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: hook.Type})
	if err == nil {
		for _, attached := range query.Programs {
			if name := attach.NameOf(attached.ID); slices.Contains(ownPrograms, name) {
				names = append(names, name)
			}
		}
	}
	// Kernels without TCX, and interfaces that have just gone, have none of these.
	filters, err := attach.Filters(index, hook)
	if err != nil {
		return names, err
	}
	for _, filter := range filters {
		if program, ok := filter.(*netlink.BpfFilter); ok && strings.HasPrefix(program.Name, filterPrefix) {
			names = append(names, strings.TrimPrefix(program.Name, filterPrefix))
		}
	}
	return names, nil
}

func rules(Options) (left []Left, err error) {
	all, err := netlink.RuleList(netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("listing the rules of routing: %w", err)
	}
	for _, rule := range all {
		if rule.Table == paths.DetourTable {
			left = append(left, Left{Rule, fmt.Sprintf("priority %d", rule.Priority), fmt.Sprintf("look up table %d", rule.Table)})
		}
	}
	return left, nil
}

func routes(Options) (left []Left, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		found, err := netlink.RouteListFiltered(family, &netlink.Route{Table: paths.DetourTable}, netlink.RT_FILTER_TABLE)
		if err != nil && !errors.Is(err, unix.ENOENT) { // no route was ever there
			return nil, fmt.Errorf("listing the routes of table %d: %w", paths.DetourTable, err)
		}
		for _, route := range found {
			left = append(left, Left{Route, fmt.Sprint(route.Dst), fmt.Sprintf("table %d", route.Table)})
		}
	}
	return left, nil
}

func neighbours(Options) (left []Left, err error) {
	addresses, err := datapath.OwnNeighbours()
	for _, address := range addresses {
		left = append(left, Left{Kind: Neighbour, Name: address.String()})
	}
	return left, err
}

// podRecords is the directory of what the network namespaces of pods were like.
const podRecords = "pods"

// guestRecords is that of what the limits of virtual machines were.
const guestRecords = "guest-agents"

// savedFile is what the last agent read from the API server.
func savedFile(options Options) (left []Left, err error) {
	if options.SavedPath == "" {
		return nil, nil
	}
	path := filepath.Join(options.SavedPath, saved.FileName)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("looking for files: %w", err)
	}
	return []Left{{Kind: File, Name: path}}, nil
}

// files lists what agents remember. Of the sockets of a running one it says nothing,
// nor of directories that others made beside, as one for the preload library.
func files(options Options) (left []Left, err error) {
	err = filepath.WalkDir(options.StatePath, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && path != options.StatePath && !slices.Contains([]string{podRecords, guestRecords}, entry.Name()) {
			return fs.SkipDir
		}
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		switch filepath.Base(filepath.Dir(path)) {
		case podRecords:
			inode := strings.TrimSuffix(entry.Name(), ".json")
			left = append(left, Left{Namespace, inode, "limits, endpoints and settings of MPTCP are not those from before"})
		case guestRecords:
			left = append(left, Left{File, path, "limits of MPTCP in a virtual machine are not those from before"})
		default:
			left = append(left, Left{Kind: File, Name: path})
		}
		return nil
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("looking for files: %w", err)
	}
	return left, nil
}
