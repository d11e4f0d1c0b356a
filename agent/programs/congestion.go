// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"braid.dev/braid/api/v1alpha1"
)

// congestionOperations is the structure of the kernel that a congestion control fills.
const congestionOperations = "tcp_congestion_ops"

// algorithmName is what a congestion control may be called: TCP_CA_NAME_MAX less
// the end mark, and nothing that a file's name cannot hold.
var algorithmName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_]{0,14}$`)

func loadCongestion(spec *ebpf.CollectionSpec, name string, shared []Shared) (*Program, error) {
	operations, err := chooseOperations(spec, name)
	if err != nil {
		return nil, err
	}
	algorithm, err := algorithmOf(operations)
	if err != nil {
		return nil, err
	}
	for _, program := range spec.Programs {
		if program.Type != ebpf.StructOps {
			return nil, refuse("program ", program.Name, " is no part of a congestion control")
		}
	}
	if err := errors.Join(judgeMaps(spec, append(namesOf(shared), operations.Name)...), judgeShared(spec, shared), judgeReaders(spec, shared)); err != nil {
		return nil, err
	}
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, fmt.Errorf("reading the kernel's types: %w", err)
	}
	if err := requireLinks(kernel); err != nil {
		return nil, err
	}
	collection, err := loadShared(spec, shared)
	if err != nil {
		return nil, err
	}
	block := &Program{
		Type: v1alpha1.ProgramCongestion, collection: collection,
		operations: collection.Maps[operations.Name], algorithm: algorithm,
	}
	for _, program := range collection.Programs {
		instructions, err := judgeInstructions(program)
		if err != nil {
			block.Close()
			return nil, err
		}
		block.Instructions += instructions
	}
	return block, nil
}

// requireLinks refuses congestion controls where the kernel has no links for them: it
// would answer with no more than "invalid argument".
func requireLinks(kernel *btf.Spec) error {
	var structure *btf.Struct
	switch err := kernel.TypeByName("bpf_struct_ops_link", &structure); {
	case errors.Is(err, btf.ErrNotFound):
		return refuse("this node's kernel has no links for congestion controls: Linux 6.4 or later is needed")
	case err != nil:
		return fmt.Errorf("looking for the kernel's links of congestion controls: %w", err)
	}
	return nil
}

func chooseOperations(spec *ebpf.CollectionSpec, name string) (*ebpf.MapSpec, error) {
	var names []string
	for candidate, m := range spec.Maps {
		if m.Type == ebpf.StructOpsMap {
			names = append(names, candidate)
		}
	}
	slices.Sort(names)
	if len(names) != 1 || (name != "" && name != names[0]) {
		return nil, refuse("it must hold one struct ", congestionOperations, " in SEC(\".struct_ops.link\"), of the name that the policy gives; it holds ", listed(names))
	}
	chosen := spec.Maps[names[0]]
	if operations, ok := btf.As[*btf.Struct](chosen.Value); !ok || operations.Name != congestionOperations {
		return nil, refuse(names[0], " is no struct ", congestionOperations)
	}
	if chosen.Flags&unix.BPF_F_LINK == 0 {
		return nil, refuse(names[0], " must be in SEC(\".struct_ops.link\"), so that it goes when its program does")
	}
	return chosen, nil
}

// algorithmOf reads the name that the congestion control gives itself.
func algorithmOf(operations *ebpf.MapSpec) (string, error) {
	fields, _ := btf.As[*btf.Struct](operations.Value)
	index := slices.IndexFunc(fields.Members, func(m btf.Member) bool { return m.Name == "name" })
	if index < 0 || len(operations.Contents) != 1 {
		return "", refuse("its struct ", congestionOperations, " has no name")
	}
	content, ok := operations.Contents[0].Value.([]byte)
	at := int(fields.Members[index].Offset.Bytes())
	if !ok || at >= len(content) {
		return "", refuse("its struct ", congestionOperations, " has no name")
	}
	name, _, _ := bytes.Cut(content[at:], []byte{0})
	if !algorithmName.Match(name) {
		return "", refuse(fmt.Sprintf("its name %.20q is not one of up to 15 letters, digits and underscores", name))
	}
	return string(name), nil
}

// updateStructOps puts a congestion control into the place of another of the same
// name, in one step. Sockets that have the old one keep it.
func updateStructOps(attached link.Link, operations *ebpf.Map) error {
	descriptor, ok := attached.(interface{ FD() int })
	if !ok {
		return fmt.Errorf("the link of a congestion control is of type %T", attached)
	}
	attributes := struct{ link, operations, flags, old uint32 }{link: uint32(descriptor.FD()), operations: uint32(operations.FD())}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_LINK_UPDATE, uintptr(unsafe.Pointer(&attributes)), unsafe.Sizeof(attributes))
	runtime.KeepAlive(operations)
	runtime.KeepAlive(attached)
	if errno != 0 {
		return errno
	}
	return nil
}

// putCongestion registers the algorithm. From then on sockets can choose it by its
// name.
func (m *Manager) putCongestion(next *inUse, loaded *Program, current *inUse) (err error) {
	next.kind, next.algorithm = congestionPin, loaded.algorithm
	pin := m.pin(next.pinName())
	if current != nil && current.kind == congestionPin && current.algorithm == next.algorithm {
		return m.exchangeCongestion(next, loaded, current)
	}
	next.link, err = link.AttachStructOps(link.StructOpsOptions{Map: loaded.operations})
	if errors.Is(err, unix.EEXIST) {
		// Tried again each time: the other one may go.
		return fmt.Errorf("this node has a congestion control named %s already: choose another name", next.algorithm)
	}
	if err != nil {
		return fmt.Errorf("registering congestion control %s: %w", next.algorithm, err)
	}
	if err := next.link.Pin(pin); err != nil {
		return fmt.Errorf("pinning congestion control %s: %w", next.algorithm, err)
	}
	return nil
}

// exchangeCongestion puts the new version behind the link of the old one.
func (m *Manager) exchangeCongestion(next *inUse, loaded *Program, current *inUse) error {
	if err := updateStructOps(current.link, loaded.operations); err != nil {
		return fmt.Errorf("exchanging congestion control %s: %w", next.algorithm, err)
	}
	if err := os.Rename(m.pin(current.pinName()), m.pin(next.pinName())); err != nil {
		return fmt.Errorf("renaming the pin of congestion control %s: %w", next.algorithm, err)
	}
	next.link, current.link = current.link, nil
	return nil
}
