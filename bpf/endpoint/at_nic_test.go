// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/endpoint"
	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

const (
	xdpDrop = 1
	xdpPass = 2

	rowOfTests = 1
)

// atNIC is at_nic at both NICs of a host. It counts for itself, so that what it counts can
// be compared with what to_endpoint does.
type atNIC struct {
	host    *host
	program *ebpf.Program
	maps    *endpoint.AtNICMaps
}

func (h *host) useAtNIC(t testing.TB, loaded *endpoint.AtNICObjects) {
	t.Helper()
	h.atNIC = &atNIC{host: h, program: loaded.AtNic, maps: &loaded.AtNICMaps}
	h.atNIC.reach(t)
	for path := range h.nics {
		h.atNIC.hook(t, path)
	}
}

// reach has the node route what is for the endpoints of tests to the pod.
func (a *atNIC) reach(t testing.TB) {
	t.Helper()
	require.NoError(t, a.host.Sysctl("net.ipv4.ip_forward", "1"))
	require.NoError(t, a.host.Sysctl("net.ipv6.conf.all.forwarding", "1"))
	for _, e := range endsOf {
		local := e.local.Addr()
		require.NoError(t, a.host.AddRoute(network.Route{Destination: netip.PrefixFrom(local, local.BitLen()).String(), Interface: "pod"}))
		require.NoError(t, a.maps.ReachedEndpoints.Put(toAddress(local.As16()), endpoint.AtNICReached{Interface: a.host.pod, Device: a.host.pod}))
	}
}

// hook attaches the program as a NIC's driver runs it; a test run needs that too.
func (a *atNIC) hook(t testing.TB, path int) {
	t.Helper()
	nic := a.host.nics[path]
	require.NoError(t, a.host.Do(func() error {
		attached, err := link.AttachXDP(link.XDPOptions{Program: a.program, Interface: int(nic), Flags: link.XDPDriverMode})
		if err == nil {
			t.Cleanup(func() { attached.Close() })
		}
		return err
	}))
	require.NoError(t, a.maps.HookedNics.Put(nic, endpoint.AtNICHookedNic{Address: ownAddress(packettest.Segment{})}))
}

// ownAddress is that to which the frames of tests are sent.
func ownAddress(s packettest.Segment) [6]uint8 {
	s.From, s.To = endsOf[4].local, endsOf[4].remote
	return [6]uint8(s.Frame()[:6])
}

// drops runs the program on a frame that comes in by a NIC. It must not change it.
func (a *atNIC) drops(t testutil.TB, path int, frame []byte) bool {
	t.Helper()
	options := ebpf.RunOptions{
		Data: frame, DataOut: make([]byte, len(frame)+256),
		Context: bpf.XDPMetadata{DataEnd: uint32(len(frame)), IngressIfindex: a.host.nics[path]},
	}
	var result uint32
	err := a.host.Do(func() (err error) {
		result, err = a.program.Run(&options)
		return err
	})
	if err != nil {
		t.Fatalf("running at_nic with %d bytes: %v", len(frame), err)
	}
	if !bytes.Equal(options.DataOut, frame) {
		t.Errorf("at_nic changed the packet:\n%x\n%x", frame, options.DataOut)
	}
	if result != xdpDrop && result != xdpPass {
		t.Fatalf("the verdict of at_nic is %d", result)
	}
	return result == xdpDrop
}

// counts has the counters of this hook in the place of those that there are.
func (a *atNIC) counts(t testutil.TB) (counters endpoint.AtNICCounters) {
	t.Helper()
	require.NoError(t, a.maps.ChainCounters.Lookup(uint32(rowOfTests), &counters))
	require.NoError(t, a.maps.ChainCounters.Put(uint32(rowOfTests), endpoint.AtNICCounters{}))
	return counters
}

// expectTheSame runs at_nic and then to_endpoint, which says what becomes of the packet.
// What the first one drops the second one must drop by the same rule, and count alike;
// of what passes the first one must count nothing.
func (a *atNIC) expectTheSame(t testutil.TB, path int, frame []byte, toEndpoint func() verdict) verdict {
	t.Helper()
	a.counts(t)
	droppedHere := a.drops(t, path, frame)
	here := a.counts(t)
	before := a.host.countersAt(t, rowOfTests)
	decided := toEndpoint()
	after := a.host.countersAt(t, rowOfTests)
	if !droppedHere {
		if here != (endpoint.AtNICCounters{}) {
			t.Errorf("at_nic counted a packet that it let pass")
		}
		return decided
	}
	if decided != dropped {
		t.Errorf("at_nic drops what to_endpoint lets pass: %x", frame)
	}
	for i := range here.Rule {
		there := after.Rule[i]
		there.Hits, there.Bytes, there.Acted = there.Hits-before.Rule[i].Hits, there.Bytes-before.Rule[i].Bytes, there.Acted-before.Rule[i].Acted
		if here.Rule[i].Hits != there.Hits || here.Rule[i].Bytes != there.Bytes || here.Rule[i].Acted != there.Acted {
			t.Errorf("rule %d is counted %v at the NIC and %v at the endpoint", i, here.Rule[i], there)
		}
	}
	return decided
}

// expectAt checks which of both hooks drops a packet that the endpoint receives; "" for none.
func (h *host) expectAt(t *testing.T, hook string, path int, s segment) {
	t.Helper()
	droppedHere := h.atNIC.drops(t, path, s.frame())
	decided := h.receivesBy(t, path, s)
	got := map[bool]string{true: "endpoint"}[decided == dropped]
	if droppedHere {
		got = "NIC"
	}
	require.Equal(t, hook, got, "the hook that drops it")
}

func TestWhatThePacketAloneTellsIsDroppedAtTheNIC(t *testing.T) {
	h := newHost(t)
	reset := rule{when: is(types(typeJoin)), do: []action{{Kind: actionReset}}}
	record := rule{when: is(types(typeSYN)), do: []action{{Kind: actionRecord}}}
	dropJoins := rule{when: is(types(typeJoin)), do: []action{drop}}
	forEachVersion(t, func(t *testing.T, e ends) {
		asks := e.in().at(5000).flagged(syn)
		joins, begins := asks.carrying(usual(join(9, 0))), asks.carrying(usual(capable))
		elsewhere := prefix(selectSourceAddress, cidr(e.remote.Addr(), 24, 64))
		for name, c := range map[string]struct {
			rules  []rule
			packet segment
			hook   string
		}{
			"every packet":                        {[]rule{{do: []action{drop}}}, e.in(), "NIC"},
			"a join":                              {[]rule{dropJoins}, joins, "NIC"},
			"no join":                             {[]rule{dropJoins}, begins, ""},
			"a join from where none may come":     {[]rule{{when: all(is(types(typeJoin)), is(elsewhere)), do: []action{drop}}}, joins, "NIC"},
			"a join from elsewhere":               {[]rule{{when: all(is(types(typeJoin)), not(elsewhere)), do: []action{drop}}}, joins, ""},
			"a SYN by its sender":                 {[]rule{{when: is(elsewhere), do: []action{drop}}}, begins, "NIC"},
			"an answer by its sender":             {[]rule{{when: is(elsewhere), do: []action{drop}}}, e.in(), "endpoint"},
			"a SYN by its sender's port":          {[]rule{{when: is(port(selectRemotePort, 80)), do: []action{drop}}}, begins, "NIC"},
			"an answer by its sender's port":      {[]rule{{when: is(port(selectRemotePort, 80)), do: []action{drop}}}, e.in(), "endpoint"},
			"by the endpoint's port":              {[]rule{{when: is(port(selectLocalPort, 40000)), do: []action{drop}}}, e.in(), "NIC"},
			"by another port":                     {[]rule{{when: is(port(selectLocalPort, 1)), do: []action{drop}}}, e.in(), ""},
			"by the path":                         {[]rule{{when: is(path(blue)), do: []action{drop}}}, e.in(), "NIC"},
			"by another path":                     {[]rule{{when: is(path(green)), do: []action{drop}}}, e.in(), ""},
			"the other direction's":               {[]rule{{do: []action{drop}, directions: 1 << fromEndpoint}}, e.in(), ""},
			"behind a rule that does not concern": {[]rule{{when: is(port(selectLocalPort, 1)), do: []action{drop}}, dropJoins}, joins, "NIC"},
			"behind a rule that measures":         {[]rule{record, dropJoins}, joins, "endpoint"},
			"behind one that is another packet's": {[]rule{record, {when: is(types(typeDSS)), do: []action{drop}}}, e.in().carrying(timestamps(1, 1), dataAck()), "NIC"},
			"by what was sent":                    {[]rule{{when: is(within(selectSubflowSent, 0, 1<<40)), do: []action{drop}}}, e.in(), "endpoint"},
			"by a token":                          {[]rule{{when: is(token(9)), do: []action{drop}}}, joins, "endpoint"},
			"by the backup flag":                  {[]rule{{when: is(selector{Kind: selectBackup}), do: []action{drop}}}, joins, "endpoint"},
			"an answer with a reset":              {[]rule{reset}, joins, "endpoint"},
			"after another action":                {[]rule{{do: []action{{Kind: actionRecord}, drop}}}, e.in(), "endpoint"},
		} {
			t.Run(name, func(t *testing.T) {
				h.forget(t)
				h.use(t, build(c.rules...))
				if c.rules[0].do[0].Kind == actionReset { // which is sent, and h.run expects nothing to be changed
					require.False(t, h.atNIC.drops(t, blue, c.packet.frame()))
					return
				}
				h.expectAt(t, c.hook, blue, c.packet)
			})
		}
	})
}

// What is not for the endpoint, or not understood, passes whatever the rules say.
func TestTheNICLetsPassWhatIsNotTheEndpoints(t *testing.T) {
	h := newHost(t)
	h.use(t, build(rule{do: []action{drop}}))
	forEachVersion(t, func(t *testing.T, e ends) {
		other := e.in().with(func(s *segment) { s.to = netip.AddrPortFrom(s.to.Addr().Next(), s.to.Port()) })
		forAnotherMachine := e.in().frame()
		forAnotherMachine[5]++
		for name, frame := range map[string][]byte{
			"for another address": other.frame(), "for another machine": forAnotherMachine, "of another protocol": e.in().with(func(s *segment) { s.protocol = 17 }).frame(),
			"with a tag": e.in().with(func(s *segment) { s.vlan = 5 }).frame(), "of Ethernet alone": e.in().frame()[:etherLength],
			"cut off within IP": e.in().frame()[:etherLength+8], "cut off within TCP": e.in().frame()[:len(e.in().frame())-4],
		} {
			t.Run(name, func(t *testing.T) { require.False(t, h.atNIC.drops(t, blue, frame)) })
		}
		require.True(t, h.atNIC.drops(t, blue, e.in().frame()))
	})
	fragment := endsOf[4].in().with(func(s *segment) { s.fragment = 0x2000 })
	require.False(t, h.atNIC.drops(t, blue, fragment.frame()), "a fragment")
}

func TestAPacketThatTheNodeRoutesElsewhereIsNotDroppedAtTheNIC(t *testing.T) {
	h := newHost(t)
	h.use(t, build(rule{do: []action{drop}}))
	forEachVersion(t, func(t *testing.T, e ends) {
		require.True(t, h.atNIC.drops(t, blue, e.in().frame()))
		local := e.local.Addr()
		require.NoError(t, h.AddRoute(network.Route{Destination: netip.PrefixFrom(local, local.BitLen()).String(), Interface: "green"}))
		require.False(t, h.atNIC.drops(t, blue, e.in().frame()), "the address has become another's")
	})
}

func TestWithoutAChainNothingIsDroppedAtTheNIC(t *testing.T) {
	h := newHost(t)
	frame := endsOf[4].in().frame()
	require.False(t, h.atNIC.drops(t, blue, frame))
	h.use(t, build(rule{do: []action{drop}}))
	require.True(t, h.atNIC.drops(t, blue, frame))
	h.attach(t, endpoint.FromEndpointAttachment{Interface: h.pod, Endpoint: theEndpoint})
	require.False(t, h.atNIC.drops(t, blue, frame))
}

func TestTheNICCountsWhatItDrops(t *testing.T) {
	h := newHost(t)
	h.use(t, build(rule{do: []action{drop}}))
	for range 3 {
		require.True(t, h.atNIC.drops(t, green, endsOf[4].in().data(100).frame()))
	}
	var nic endpoint.AtNICHookedNic
	require.NoError(t, h.atNIC.maps.HookedNics.Lookup(h.nics[green], &nic))
	require.EqualValues(t, 3, nic.Dropped)
	counted := h.atNIC.counts(t).Rule[0]
	require.EqualValues(t, []uint64{3, 300, 3}, []uint64{counted.Hits, counted.Bytes, counted.Acted})
}

// A NIC with an MTU of 9000 hands such frames over in several buffers.
func TestAFrameOfSeveralBuffersIsJudgedByItsFirst(t *testing.T) {
	h := newHost(t)
	h.use(t, build(rule{do: []action{drop}}))
	forEachVersion(t, func(t *testing.T, e ends) {
		require.True(t, h.atNIC.drops(t, blue, e.in().data(8800).frame()))
	})
}
