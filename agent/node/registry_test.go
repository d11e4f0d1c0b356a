// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

// bpffs mounts a BPF file system for the test alone.
func bpffs(t testing.TB) string {
	t.Helper()
	directory := t.TempDir()
	if err := unix.Mount("bpf", directory, "bpf", 0, ""); err != nil {
		t.Fatalf("mounting a BPF file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(directory, 0); err != nil {
			t.Errorf("unmounting the BPF file system: %v", err)
		}
	})
	return directory
}

func must[T any](t interface{ Fatal(...any) }, value T, err error) T {
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// sourcesOf are a node with these paths, peers and pods, each named by a number.
func sourcesOf(nics, peers, pods []int) Sources {
	from := Sources{Plan: &v1alpha1.MPTCPNodePlan{}}
	for _, i := range nics {
		from.Resolution.Paths = append(from.Resolution.Paths, paths.Path{Name: fmt.Sprint("path", i), NIC: paths.NIC{Index: i + 1}})
	}
	for _, i := range peers {
		from.Peers = append(from.Peers, paths.Peer{Name: fmt.Sprint("node", i), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}})
	}
	for _, i := range pods {
		from.Plan.Spec.Endpoints = append(from.Plan.Spec.Endpoints, v1alpha1.PlanEndpoint{
			UID: types.UID(fmt.Sprint("uid", i)), Namespace: fmt.Sprint("team", i%3), Name: fmt.Sprint("pod", i),
			Addresses: []string{fmt.Sprintf("10.1.0.%d", i)},
		})
	}
	return from
}

// numbersOf are all numbers of a model, by what has them.
func numbersOf(m *Model) map[string]uint32 {
	numbers := map[string]uint32{}
	for _, path := range m.NICs() {
		numbers["path "+path.Name] = uint32(path.Number)
	}
	for _, peer := range m.Peers {
		numbers["peer "+peer.Name] = peer.Number
	}
	for _, endpoint := range m.Endpoints {
		numbers["endpoint "+string(endpoint.UID)] = endpoint.Number
	}
	for name, number := range m.Tenants {
		numbers["tenant "+name] = number
	}
	return numbers
}

func kindOf(name string) string { kind, _, _ := strings.Cut(name, " "); return kind }

// What comes and goes, and agents that restart: what stays keeps its number, no two
// have the same, and none gets the number of one that is gone before all parts have
// applied a model without it.
func TestNumbersStayWithTheirOwners(t *testing.T) {
	pins := bpffs(t)
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		directory := filepath.Join(pins, fmt.Sprint(runs))
		builder := NewBuilder(OpenRegistry(directory, logr.Discard()))
		defer func() { must(t, 0, builder.registry.Remove()) }()
		before, held := map[string]uint32{}, map[string]string{}
		for range rapid.IntRange(1, 6).Draw(rt, "rounds") {
			draw := func(most, count int, what string) []int {
				return rapid.SliceOfNDistinct(rapid.IntRange(1, most), 0, count, rapid.ID).Draw(rt, what)
			}
			model, err := builder.Build(sourcesOf(append(draw(4, 4, "paths"), 9), draw(12, 8, "peers"), draw(12, 8, "pods")))
			must(rt, 0, err)
			now, taken := numbersOf(model), map[string]string{}
			for name, number := range now {
				key := fmt.Sprint(kindOf(name), number)
				if other := taken[key]; other != "" {
					rt.Fatalf("%s and %s have the same number %d", name, other, number)
				}
				taken[key] = name
				if was, stayed := before[name]; stayed && was != number {
					rt.Fatalf("%s had the number %d and has %d", name, was, number)
				}
				if owner := held[key]; owner != "" && owner != name {
					rt.Fatalf("%s got the number %d, to which parts may still refer as that of %s", name, number, owner)
				}
				held[key] = name
			}
			before = now
			if rapid.Bool().Draw(rt, "all parts have applied it") {
				must(rt, true, second(builder.Applied(model, false)))
				maps.DeleteFunc(held, func(_ string, owner string) bool { _, stays := now[owner]; return !stays })
			}
			if rapid.Bool().Draw(rt, "restart") {
				must(rt, 0, builder.Close())
				builder = NewBuilder(OpenRegistry(directory, logr.Discard()))
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestRetiredNumbersAreToldUntilAllPartsHaveForgottenThem(t *testing.T) {
	builder := NewBuilder(OpenRegistry(filepath.Join(bpffs(t), "braid"), logr.Discard()))
	build(t, builder, sourcesOf([]int{1, 2}, []int{1}, []int{1, 2}))
	model := build(t, builder, sourcesOf([]int{1}, nil, []int{2}))
	for kind, count := range map[Kind]int{KindPath: 1, KindPeer: 1, KindEndpoint: 1, KindTenant: 1} {
		if len(model.Retired[kind]) != count {
			t.Errorf("retired of kind %s: %v", kind, model.Retired[kind])
		}
	}
	freed, err := builder.Applied(model, true)
	if err != nil || !freed {
		t.Errorf("numbers are free: %v, %v", freed, err)
	}
	model = build(t, builder, sourcesOf([]int{1}, nil, []int{2}))
	if len(model.Retired[KindPath]) != 0 || len(model.Retired[KindEndpoint]) != 1 {
		t.Errorf("while endpoints drain, these are retired: %v", model.Retired)
	}
	if freed, err = builder.Applied(model, false); err != nil || !freed {
		t.Errorf("after that numbers are free: %v, %v", freed, err)
	}
	model = build(t, builder, sourcesOf([]int{1}, nil, []int{2}))
	if left := len(model.Retired[KindPath]) + len(model.Retired[KindEndpoint]); left != 0 {
		t.Errorf("%d numbers are still retired", left)
	}
	must(t, 0, builder.Close())
}

func TestWhatAnEarlierAgentRetiredStaysSoUntilSomethingIsApplied(t *testing.T) {
	pins := filepath.Join(bpffs(t), "braid")
	builder := NewBuilder(OpenRegistry(pins, logr.Discard()))
	build(t, builder, sourcesOf([]int{1}, nil, []int{1, 2}))
	build(t, builder, sourcesOf([]int{1}, nil, []int{2}))
	must(t, 0, builder.Close())
	builder = NewBuilder(OpenRegistry(pins, logr.Discard()))
	model := build(t, builder, sourcesOf([]int{1}, nil, []int{2}))
	if freed, err := builder.Applied(&Model{}, false); err != nil || freed {
		t.Errorf("before anything is applied, numbers are free: %v, %v", freed, err)
	}
	if freed, err := builder.Applied(model, false); err != nil || !freed {
		t.Errorf("after that, numbers are free: %v, %v", freed, err)
	}
	must(t, 0, builder.Close())
}

// get is for a value that comes with an error.
func get[T any](value T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func build(t testing.TB, builder *Builder, from Sources) *Model {
	t.Helper()
	return get(builder.Build(from))(t)
}

func TestNothingIsPinnedWithoutNumbers(t *testing.T) {
	pins := filepath.Join(bpffs(t), "braid")
	builder := NewBuilder(OpenRegistry(pins, logr.Discard()))
	build(t, builder, sourcesOf(nil, []int{1}, nil))
	if _, err := os.Stat(pins); !os.IsNotExist(err) {
		t.Errorf("a node without paths and pods has pins: %v", err)
	}
	build(t, builder, sourcesOf([]int{1}, []int{1, 2}, []int{1}))
	model := build(t, builder, sourcesOf(nil, []int{1, 2}, nil))
	must(t, true, second(builder.Applied(model, false)))
	build(t, builder, sourcesOf(nil, []int{1, 2}, nil))
	if _, err := os.Stat(filepath.Join(pins, registryDirectory)); !os.IsNotExist(err) {
		t.Errorf("the registry of a node without anything is still pinned: %v", err)
	}
}

// Somebody tidies up below /sys/fs/bpf.
func TestPinsThatSomebodyRemovedAreMissed(t *testing.T) {
	directory := filepath.Join(bpffs(t), "braid")
	builder := NewBuilder(OpenRegistry(directory, logr.Discard()))
	require.NoError(t, builder.Lost(), "nothing has a number yet")
	_, err := builder.Build(sourcesOf([]int{1}, nil, nil))
	require.NoError(t, err)
	require.NoError(t, builder.Lost())
	require.NoError(t, os.RemoveAll(directory))
	require.ErrorIs(t, builder.Lost(), ErrPinsRemoved)
	require.NoError(t, builder.Close())
}

func TestNumbersThatRunOutAreToldAndTheRestGoesOn(t *testing.T) {
	builder := NewBuilder(OpenRegistry(filepath.Join(bpffs(t), "braid"), logr.Discard()))
	defer builder.Close()
	model, err := builder.Build(sourcesOf([]int{1, 2, 3, 4, 5, 6, 7, 8, 9}, nil, []int{1}))
	if err == nil || !strings.Contains(err.Error(), "8 paths") {
		t.Errorf("nine paths: %v", err)
	}
	if nics := model.NICs(); len(nics) != MaxPaths || model.Endpoints[0].Number == 0 {
		t.Errorf("the model has %d NICs and the endpoint %+v", len(nics), model.Endpoints[0])
	}
}

// An endpoint that a look does not find keeps the interface that it had, also where
// another agent found it.
func TestInterfacesAreRememberedWhileAPodIsNotFound(t *testing.T) {
	pins := filepath.Join(bpffs(t), "braid")
	from := sourcesOf([]int{1}, nil, []int{1, 2})
	builder := NewBuilder(OpenRegistry(pins, logr.Discard()))
	model := build(t, builder, from)
	at := map[string]endpoints.Endpoint{"uid1": {HostIndex: 7}, "uid2": {HostIndex: 8, MasterIndex: 3}}
	model, changed, err := builder.Find(model, endpoints.NewSnapshot(at, nil), true)
	if err != nil || !changed || model.Endpoints[0].Ingress() != 7 || model.Endpoints[1].Ingress() != 0 {
		t.Errorf("found: %+v, %v, %v", model.Endpoints, changed, err)
	}
	must(t, 0, builder.Close())
	builder = NewBuilder(OpenRegistry(pins, logr.Discard()))
	defer builder.Close()
	model = build(t, builder, from)
	model, changed, err = builder.Find(model, endpoints.NewSnapshot(nil, nil), true)
	if err != nil || changed || model.Endpoints[0].HostInterface != 7 || model.Endpoints[1].HostInterface != 8 || !model.Endpoints[1].Bridged {
		t.Errorf("after a restart: %+v, %v, %v", model.Endpoints, changed, err)
	}
	if model.Endpoints[0].Found != nil || model.Endpoints[0].Missing == nil {
		t.Errorf("the endpoint was not found, and is %+v", model.Endpoints[0])
	}
}

// pinned makes a map as an earlier agent pinned it.
func pinned(t *testing.T, directory string, spec *ebpf.MapSpec) *ebpf.Map {
	t.Helper()
	must(t, 0, os.MkdirAll(directory, 0o700))
	spec.Pinning = ebpf.PinByName
	m := get(ebpf.NewMapWithOptions(spec, ebpf.MapOptions{PinPath: directory}))(t)
	t.Cleanup(func() { m.Close() })
	return m
}

// Agents before the registry had numbers in maps of each part; flows and records go by
// them.
func TestNumbersOfEarlierAgentsAreTakenOver(t *testing.T) {
	pins := filepath.Join(bpffs(t), "braid")
	names := pinned(t, filepath.Join(pins, "datapath/v1"), &ebpf.MapSpec{Name: "path_names", Type: ebpf.Array, KeySize: 4, ValueSize: 64, MaxEntries: 8})
	var name [64]byte
	copy(name[:], "path2")
	must(t, 0, names.Put(uint32(5), name))
	peers := pinned(t, filepath.Join(pins, "datapath/v1"), &ebpf.MapSpec{Name: "peer_addresses", Type: ebpf.Hash, KeySize: 16, ValueSize: 4, MaxEntries: 8})
	must(t, 0, peers.Put(netip.MustParseAddr("10.0.0.1").As16(), uint32(40)))
	must(t, 0, peers.Put(netip.MustParseAddr("10.0.0.99").As16(), uint32(41)))
	known := pinned(t, filepath.Join(pins, "endpoints/v1"), &ebpf.MapSpec{Name: "endpoint_names", Type: ebpf.Hash, KeySize: 64, ValueSize: 8, MaxEntries: 8})
	var uid [64]byte
	copy(uid[:], "uid2")
	must(t, 0, known.Put(uid, struct{ Number, Interface uint32 }{77, 6}))

	builder := NewBuilder(OpenRegistry(pins, logr.Discard()))
	defer builder.Close()
	model := build(t, builder, sourcesOf([]int{1, 2}, []int{1}, []int{1, 2}))
	numbers := numbersOf(model)
	for of, number := range map[string]uint32{"path path2": 5, "peer node1": 40, "endpoint uid2": 77} {
		if numbers[of] != number {
			t.Errorf("%s has the number %d instead of %d", of, numbers[of], number)
		}
	}
	if model.Endpoints[1].HostInterface != 6 {
		t.Errorf("the interface of the endpoint is %d", model.Endpoints[1].HostInterface)
	}
	if !model.Retired[KindPeer][41] {
		t.Errorf("the number of a peer that is gone is not retired: %v", model.Retired)
	}
	if read := get(ReadNames(pins))(t); read.Paths[5] != "path2" || read.Endpoints[77] != "uid2" || read.Interfaces[77] != 6 || !slices.Contains(read.Paths[:], "path1") {
		t.Errorf("the names by the pins are %+v", read)
	}
}

func TestInterfacesOfNoEndpointAreUnclaimed(t *testing.T) {
	builder := NewBuilder(OpenRegistry(filepath.Join(bpffs(t), "braid"), logr.Discard()))
	defer builder.Close()
	from := sourcesOf([]int{1}, nil, []int{1})
	from.Resolution.Uplinks = []paths.NIC{{Index: 4}}
	model := build(t, builder, from)
	look := endpoints.NewSnapshot(map[string]endpoints.Endpoint{"uid1": {HostIndex: 7}}, nil)
	look.HostEnds = map[int]endpoints.HostEnd{}
	for _, index := range []int{model.Paths[0].Interface, 4, 7, 9, 8} {
		look.HostEnds[index] = endpoints.HostEnd{Index: index, NamespaceID: index}
	}
	model, _, err := builder.Find(model, look, true)
	if want := []endpoints.HostEnd{{Index: 8, NamespaceID: 8}, {Index: 9, NamespaceID: 9}}; err != nil || !slices.Equal(model.Unclaimed, want) {
		t.Errorf("unclaimed are %v (%v), want %v", model.Unclaimed, err, want)
	}
}

func TestInterfacesOfExemptPodsAreKnownAlsoWhenTheyAreNotFoundForAMoment(t *testing.T) {
	builder := NewBuilder(OpenRegistry(filepath.Join(bpffs(t), "braid"), logr.Discard()))
	defer builder.Close()
	from := sourcesOf([]int{1}, nil, []int{1})
	from.Plan.Spec.NewPods = &v1alpha1.PlanNewPods{Exempt: []v1alpha1.PlanExemptPod{{UID: "free", CgroupUID: "hash", Addresses: []string{"10.1.0.9"}}, {UID: "later"}}}
	look := endpoints.NewSnapshot(map[string]endpoints.Endpoint{"uid1": {HostIndex: 7}, "free": {HostIndex: 8, RoutedBy: 30}}, nil)
	look.Owners = map[int]string{7: "uid1", 8: "free"}
	look.HostEnds = map[int]endpoints.HostEnd{7: {Index: 7}, 8: {Index: 8}, 9: {Index: 9}}
	model, _, err := builder.Find(build(t, builder, from), look, true)
	if want := []endpoints.HostEnd{{Index: 9}}; err != nil || !slices.Equal(model.Unclaimed, want) {
		t.Errorf("unclaimed are %v (%v), want %v", model.Unclaimed, err, want)
	}
	if device := model.PodDevice(); device != 30 {
		t.Errorf("pods are reached by interface %d", device)
	}
	if !model.AwaitsPods() {
		t.Error("nobody looks for the pod that is not there yet")
	}
	again := build(t, builder, from).Pods()
	want := endpoints.Pod{UID: "free", GroupUID: "hash", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.9")}, Interface: 8, Yields: true}
	if len(again) != 3 || !reflect.DeepEqual(again[1], want) {
		t.Errorf("looked for are %+v, want %+v among them", again, want)
	}
	from.Plan.Spec.NewPods = nil
	model, _, err = builder.Find(build(t, builder, from), look, true)
	if err != nil || len(model.Pods()) != 1 || model.AwaitsPods() {
		t.Errorf("without new pods being guarded %+v are looked for (%v)", model.Pods(), err)
	}
}
