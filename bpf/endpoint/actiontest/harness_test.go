// SPDX-License-Identifier: Apache-2.0

package actiontest_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/endpoint/actiontest"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// The enums of the C headers.
const (
	fromEndpoint = 0
	toEndpoint   = 1

	stepAct      = 1
	stepSettle   = 2
	stepUnsettle = 4

	rateLimit       = 1
	setBackup       = 2
	suppressAddAddr = 3
	releaseAddAddr  = 4
	drop            = 8
	reset           = 9

	auto   = 0
	pace   = 1
	window = 2
	police = 3

	theEndpoint = 7
	theToken    = 0x01020304
)

// The verdicts of the programs.
const (
	next = -1
	shot = 2
)

// harness is the programs and their maps, in a network namespace where what they
// send meets nobody.
type harness struct {
	actiontest.HarnessObjects
	namespace *network.Namespace
	order     actiontest.HarnessOrder
	out       []byte
}

func newHarness(t testing.TB) *harness {
	t.Helper()
	h := &harness{namespace: network.NamespaceForTest(t), out: make([]byte, 4096)}
	h.load(t)
	return h
}

func (h *harness) load(t testing.TB) {
	t.Helper()
	err := actiontest.LoadHarnessObjects(&h.HarnessObjects, nil)
	var verifier *ebpf.VerifierError
	if errors.As(err, &verifier) {
		t.Fatalf("%+v", verifier)
	}
	require.NoError(t, err)
	t.Cleanup(func() { h.Close() })
	h.order = actiontest.HarnessOrder{Steps: stepAct | stepSettle, Endpoint: theEndpoint}
	h.tell(t)
}

// action is what one direction's packets ask for.
type action struct {
	kind, mechanism, scope, flag uint8
	limit                        uint32
	rate                         uint64
}

// ask makes the harness run this action on the packets of a direction.
func (h *harness) ask(t testutil.TB, direction int, a action) {
	t.Helper()
	to := &h.order.Action[direction]
	to.Kind, to.Mechanism, to.Scope, to.Flag, to.Limit, to.Rate = a.kind, a.mechanism, a.scope, a.flag, a.limit, a.rate
	h.tell(t)
}

func (h *harness) steps(t testutil.TB, steps uint32) {
	t.Helper()
	h.order.Steps = steps
	h.tell(t)
}

// wait puts the harness's clock forward.
func (h *harness) wait(t testutil.TB, nanoseconds uint64) {
	t.Helper()
	h.order.Ahead += nanoseconds
	h.tell(t)
}

func (h *harness) tell(t testutil.TB) {
	t.Helper()
	require.NoError(t, h.Orders.Update(uint32(0), &h.order, ebpf.UpdateAny))
}

func keyOf(version int) (key actiontest.HarnessSubflowKey) {
	key.Endpoint = theEndpoint
	key.Local.Word, key.LocalPort = words(ends[version][0])
	key.Remote.Word, key.RemotePort = words(ends[version][1])
	return key
}

func words(end netip.AddrPort) (address [4]uint32, port uint16) {
	bytes := end.Addr().As16()
	for i := range address {
		address[i] = binary.NativeEndian.Uint32(bytes[4*i:])
	}
	return address, binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, end.Port()))
}

// begin makes a record of the subflow whose handshake was seen and whose ends are
// 10 ms apart.
func (h *harness) begin(t testutil.TB, version int, change ...func(*actiontest.HarnessSubflow)) {
	t.Helper()
	subflow := actiontest.HarnessSubflow{Token: theToken, Path: 0xff}
	for direction := range subflow.Traffic {
		subflow.Traffic[direction].WindowScale = 1 + 7
		subflow.Traffic[direction].MinimumRtt = 5000
	}
	for _, change := range change {
		change(&subflow)
	}
	require.NoError(t, h.Subflows.Update(keyOf(version), &subflow, ebpf.UpdateAny))
}

func (h *harness) subflow(t testutil.TB, version int) (subflow actiontest.HarnessSubflow) {
	t.Helper()
	require.NoError(t, h.Subflows.Lookup(keyOf(version), &subflow))
	return subflow
}

// run lets one packet pass in a direction, and returns it as it comes out.
func (h *harness) run(t testutil.TB, direction int, frame []byte) (out []byte, verdict int) {
	t.Helper()
	require.NoError(t, h.namespace.Do(func() (err error) {
		out, verdict, err = h.runHere(direction, frame)
		return err
	}))
	return out, verdict
}

// runHere does the same on a thread that is in the namespace already; what it
// returns lasts until the next run.
func (h *harness) runHere(direction int, frame []byte) (out []byte, verdict int, err error) {
	program := h.FromHarness
	if direction == toEndpoint {
		program = h.ToHarness
	}
	options := &ebpf.RunOptions{Data: frame, DataOut: h.out[:cap(h.out)]}
	result, err := program.Run(options)
	return options.DataOut, int(int32(result)), err
}
