// SPDX-License-Identifier: Apache-2.0

package guestagent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/testutil"
)

// newPart has directories of its own, and a clock that the test moves.
func newPart(t *testing.T) (*Part, *time.Time) {
	t.Helper()
	p := New(Options{Sockets: t.TempDir(), Records: filepath.Join(t.TempDir(), "records"), Log: logr.Discard()})
	now := time.Unix(1000, 0)
	p.now, p.patience = func() time.Time { return now }, time.Second
	return p, &now
}

// step has all asked whose turn it is, and returns whether there is something else to say.
func (p *Part) step(ctx context.Context) bool {
	var changed atomic.Bool
	notify := p.options.Notify
	p.options.Notify = func() { changed.Store(true) }
	for p.begin(ctx) > 0 {
		p.asking.Wait()
	}
	p.options.Notify = notify
	return changed.Load()
}

// again is a part as the next agent has it.
func again(p *Part) *Part {
	next := New(p.options)
	next.now = p.now
	return next
}

// modelOf has a VM at each of these sockets, with its name as UID.
func modelOf(sockets ...string) *node.Model {
	model := &node.Model{}
	for _, socket := range sockets {
		model.Endpoints = append(model.Endpoints, node.Endpoint{PlanEndpoint: &v1alpha1.PlanEndpoint{
			UID: types.UID(socket), Namespace: "shop", Name: socket, Guest: &v1alpha1.PlanGuest{AgentSocket: socket},
		}})
	}
	return model
}

// statusOf is what a part says of a VM.
func statusOf(t *testing.T, p *Part, model *node.Model, uid types.UID) *v1alpha1.GuestAgentStatus {
	t.Helper()
	report := p.Apply(t.Context(), model)
	require.NoError(t, report.Err)
	status := &v1alpha1.EndpointStatus{}
	if describe := report.Endpoints[uid].Describe; describe != nil {
		describe(status)
	}
	return status.GuestAgent
}

func TestAGuestsLimitsAreRaisedAndPutBackWhenThePolicyGoes(t *testing.T) {
	p, _ := newPart(t)
	vm := serve(t, p.options.Sockets, "vm", &peer{is: byDefault})
	require.Nil(t, statusOf(t, p, modelOf("vm"), "vm"), "nobody has asked yet")
	require.Empty(t, vm.ran(), "a round asks nobody")
	require.True(t, p.step(t.Context()))
	require.Equal(t, limits{8, 8}, vm.now())
	require.Equal(t, &v1alpha1.GuestAgentStatus{State: v1alpha1.GuestAgentLimitsSet}, statusOf(t, p, modelOf("vm"), "vm"))
	require.False(t, p.step(t.Context()), "there is nothing new to say")

	p = again(p) // an agent that has just started puts nothing back before it knows the plan
	p.step(t.Context())
	require.Equal(t, limits{8, 8}, vm.now())
	p.Apply(t.Context(), modelOf())
	p.step(t.Context())
	require.Equal(t, byDefault, vm.now())
	ran := len(vm.ran())
	p.step(t.Context())
	require.Len(t, vm.ran(), ran, "who is put back is left alone")
	require.Empty(t, recordsOf(t, p))
}

func recordsOf(t *testing.T, p *Part) []*record {
	t.Helper()
	all, err := p.recorded()
	require.NoError(t, err)
	return all
}

func TestWhatATenantChangedItselfIsNotPutBack(t *testing.T) {
	for name, is := range map[string]struct{ before, changed, after limits }{
		"nothing":                {limits{0, 2}, limits{8, 8}, limits{0, 2}},
		"both":                   {limits{0, 2}, limits{4, 5}, limits{4, 5}},
		"one":                    {limits{1, 2}, limits{8, 3}, limits{1, 3}},
		"one was enough already": {limits{0, 8}, limits{8, 8}, limits{0, 8}},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := newPart(t)
			vm := serve(t, p.options.Sockets, "vm", &peer{is: is.before})
			p.Apply(t.Context(), modelOf("vm"))
			p.step(t.Context())
			require.Equal(t, limits{8, 8}, vm.now())
			vm.set(is.changed)
			p.Apply(t.Context(), modelOf())
			p.step(t.Context())
			require.Equal(t, is.after, vm.now())
		})
	}
}

func TestLimitsThatAreHighEnoughAreNotTouched(t *testing.T) {
	p, now := newPart(t)
	vm := serve(t, p.options.Sockets, "vm", &peer{is: limits{8, 9}})
	p.Apply(t.Context(), modelOf("vm"))
	p.step(t.Context())
	require.Equal(t, []string{"ip mptcp limits show", "cat " + keptAt}, vm.ran(), "another node may have raised them")
	*now = now.Add(recheck)
	p.step(t.Context())
	require.Equal(t, []string{"ip mptcp limits show"}, vm.ran()[2:], "which is looked at once")
	require.Equal(t, v1alpha1.GuestAgentLimitsSet, statusOf(t, p, modelOf("vm"), "vm").State)
	require.Empty(t, recordsOf(t, p))
}

func TestAGuestThatWasRebootedIsRaisedAgain(t *testing.T) {
	p, now := newPart(t)
	vm := serve(t, p.options.Sockets, "vm", &peer{is: limits{1, 2}})
	p.Apply(t.Context(), modelOf("vm"))
	p.step(t.Context())
	vm.set(byDefault)
	*now = now.Add(recheck)
	p.step(t.Context())
	require.Equal(t, limits{8, 8}, vm.now())
	p.Apply(t.Context(), modelOf())
	p.step(t.Context())
	require.Equal(t, byDefault, vm.now(), "it is put back to what it had since")
}

func TestAGuestThatIsPartlyAsItWasSetIsPutBackToWhatItHadBefore(t *testing.T) {
	p, now := newPart(t)
	vm := serve(t, p.options.Sockets, "vm", &peer{is: limits{1, 2}})
	p.Apply(t.Context(), modelOf("vm"))
	p.step(t.Context())
	vm.set(limits{8, 3})
	*now = now.Add(recheck)
	p.step(t.Context())
	require.Equal(t, limits{8, 8}, vm.now())
	p.Apply(t.Context(), modelOf())
	p.step(t.Context())
	require.Equal(t, limits{1, 3}, vm.now())
}

// The node to which a VM moves did not raise its limits, and learns from the guest what they were.
func TestTheNodeToWhichAVMMovedPutsItsLimitsBack(t *testing.T) {
	for name, is := range map[string]struct {
		before, changed, after limits
		kept                   string // by the tenant; as the node wrote it where it is empty
	}{
		"nothing":                    {limits{0, 2}, limits{8, 8}, limits{0, 2}, ""},
		"a limit":                    {limits{1, 2}, limits{8, 3}, limits{1, 3}, ""},
		"the record, to nonsense":    {limits{0, 2}, limits{8, 8}, limits{8, 8}, "rm -rf /"},
		"the record, to large words": {limits{0, 2}, limits{8, 8}, limits{8, 8}, `{"before": {"acceptedAddresses": 200, "subflows": -1}, "set": {"acceptedAddresses": 8, "subflows": 8}}`},
	} {
		t.Run("where the tenant changed "+name, func(t *testing.T) {
			source, _ := newPart(t)
			target, _ := newPart(t)
			target.options.Sockets = source.options.Sockets
			vm := serve(t, source.options.Sockets, "vm", &peer{is: is.before})
			source.Apply(t.Context(), modelOf("vm"))
			source.step(t.Context())
			vm.set(is.changed)
			if is.kept != "" {
				vm.keep(is.kept)
			}
			target.Apply(t.Context(), modelOf("vm"))
			target.step(t.Context())
			target = again(target)
			target.Apply(t.Context(), modelOf())
			target.step(t.Context())
			require.Equal(t, is.after, vm.now())
			require.Empty(t, recordsOf(t, target))
		})
	}
}

func TestAGuestThatKeepsNoFileIsRaisedAndPutBackAllTheSame(t *testing.T) {
	p, _ := newPart(t)
	refused := &peer{is: byDefault, fails: "tee"}
	vm := serve(t, p.options.Sockets, "vm", refused)
	p.Apply(t.Context(), modelOf("vm"))
	p.step(t.Context())
	require.Equal(t, limits{8, 8}, vm.now())
	p.Apply(t.Context(), modelOf())
	p.step(t.Context())
	require.Equal(t, byDefault, vm.now())
}

// Hundreds of guests that answer are asked within moments, also beside some whose agents hang.
func TestHundredsOfGuestsAreAskedWithinBounds(t *testing.T) {
	p, _ := newPart(t)
	p.patience = 3 * time.Second
	model, all := &node.Model{}, []*peer{}
	add := func(namespace, name string) {
		one := modelOf(name)
		one.Endpoints[0].Namespace = namespace
		model.Endpoints = append(model.Endpoints, one.Endpoints...)
	}
	for i := range 100 { // they come first, and are not all asked at once
		name := fmt.Sprintf("a%03d", i)
		listener, err := net.Listen("unix", filepath.Join(p.options.Sockets, name))
		require.NoError(t, err)
		defer listener.Close()
		add("hangs", name)
	}
	for i := range 400 {
		name := fmt.Sprintf("vm%03d", i)
		all = append(all, serve(t, p.options.Sockets, name, &peer{is: byDefault, slow: 20 * time.Millisecond}))
		add(fmt.Sprintf("shop%d", i%4), name)
	}
	p.Apply(t.Context(), model)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began, done := time.Now(), make(chan error)
	go func() { done <- p.Run(ctx) }()
	testutil.Eventually(t, time.Minute, "all that answer are raised", func() bool {
		return !slices.ContainsFunc(all, func(vm *peer) bool { return vm.now() != limits{8, 8} })
	})
	t.Logf("400 guests were raised within %v, beside 100 that hang", time.Since(began))
	p.mutex.Lock()
	require.LessOrEqual(t, len(p.busy), atOnce)
	hanging := 0
	for _, of := range p.busy {
		if of.namespace() == "hangs" {
			hanging++
		}
	}
	p.mutex.Unlock()
	require.LessOrEqual(t, hanging, ofOneNamespace)
	cancel()
	require.NoError(t, <-done)
}

// Also guests of very many namespaces that hang hold up others only until that is known of them.
func TestGuestsOfManyNamespacesThatHangHoldUpNoOther(t *testing.T) {
	p, now := newPart(t)
	model := &node.Model{}
	for i := range 2 * atOnce {
		name := fmt.Sprintf("a%03d", i)
		listener, err := net.Listen("unix", filepath.Join(p.options.Sockets, name))
		require.NoError(t, err)
		defer listener.Close()
		one := modelOf(name)
		one.Endpoints[0].Namespace = name
		model.Endpoints = append(model.Endpoints, one.Endpoints...)
	}
	p.patience = 100 * time.Millisecond
	p.Apply(t.Context(), model)
	p.step(t.Context())
	vm := serve(t, p.options.Sockets, "vm", &peer{is: byDefault})
	model.Endpoints = append(model.Endpoints, modelOf("vm").Endpoints...)
	p.patience = time.Minute
	*now = now.Add(retry)
	p.Apply(t.Context(), model)
	ctx, cancel := context.WithCancel(t.Context())
	defer p.asking.Wait()
	defer cancel()
	require.Equal(t, ofTheSilent+1, p.begin(ctx))
	testutil.Eventually(t, 20*time.Second, "the one that answers is raised", func() bool { return vm.now() == limits{8, 8} })
}

func TestOneGuestThatHangsHoldsUpNoOther(t *testing.T) {
	p, _ := newPart(t)
	for _, name := range []string{"mute", "deaf"} {
		listener, err := net.Listen("unix", filepath.Join(p.options.Sockets, name))
		require.NoError(t, err)
		defer listener.Close()
	}
	vm := serve(t, p.options.Sockets, "vm", &peer{is: byDefault})
	model := modelOf("mute", "vm", "deaf")
	p.Apply(t.Context(), model)
	done := make(chan struct{})
	go func() { p.step(t.Context()); close(done) }()
	testutil.Eventually(t, 20*time.Second, "the one that answers is raised, and its status says so", func() bool {
		status := statusOf(t, p, model, "vm")
		return vm.now() == limits{8, 8} && status != nil && status.State == v1alpha1.GuestAgentLimitsSet
	})
	began := time.Now()
	statusOf(t, p, model, "vm")
	require.Less(t, time.Since(began), time.Second, "a round waits for no guest")
	<-done
	status := statusOf(t, p, model, "mute")
	require.Equal(t, v1alpha1.GuestAgentUnreachable, status.State)
	require.Contains(t, status.Message, "something else holds the socket open")
}

func TestItIsToldWhyAGuestIsNotReached(t *testing.T) {
	p, now := newPart(t)
	model := modelOf("vm")
	p.Apply(t.Context(), model)
	require.True(t, p.step(t.Context()))
	require.Equal(t, v1alpha1.GuestAgentUnreachable, statusOf(t, p, model, "vm").State)
	require.Contains(t, statusOf(t, p, model, "vm").Message, "there is no vm")
	*now = now.Add(retry)
	require.False(t, p.step(t.Context()), "there is nothing new to say")
	vm := serve(t, p.options.Sockets, "vm", &peer{is: byDefault, answer: func(command string) string {
		if command == "guest-exec" {
			return `{"error": {"class": "CommandNotFound", "desc": "Command guest-exec has been disabled"}}` + "\n"
		}
		return ""
	}})
	*now = now.Add(retry)
	require.True(t, p.step(t.Context()))
	require.Equal(t, v1alpha1.GuestAgentRefused, statusOf(t, p, model, "vm").State)
	require.Equal(t, byDefault, vm.now())

	without := New(Options{Records: p.options.Records, Log: logr.Discard()})
	without.Apply(t.Context(), model)
	without.step(t.Context())
	require.Contains(t, statusOf(t, without, model, "vm").Message, "agent.guestAgentDirectory")
}

func TestAMachineThatIsGoneIsForgottenAndOneThatIsSilentIsNot(t *testing.T) {
	p, now := newPart(t)
	mute := false
	vm := serve(t, p.options.Sockets, "vm", &peer{is: byDefault, answer: func(string) string {
		if mute {
			return "nonsense\n"
		}
		return ""
	}})
	p.Apply(t.Context(), modelOf("vm"))
	p.step(t.Context())
	mute = true
	p.Apply(t.Context(), modelOf())
	p.step(t.Context())
	require.Len(t, recordsOf(t, p), 1)
	mute = false
	p.step(t.Context())
	require.Equal(t, limits{8, 8}, vm.now(), "it is not its turn yet")
	*now = now.Add(retry)
	p.step(t.Context())
	require.Equal(t, byDefault, vm.now())

	p.Apply(t.Context(), modelOf("vm"))
	p.step(t.Context())
	require.Len(t, recordsOf(t, p), 1)
	require.NoError(t, os.Remove(filepath.Join(p.options.Sockets, "vm")))
	p.Apply(t.Context(), modelOf())
	p.step(t.Context())
	require.Empty(t, recordsOf(t, p))
}

func TestRemovingPutsBackWhoAnswersAndWaitsForNobodyElse(t *testing.T) {
	p, _ := newPart(t)
	var hostile bool
	vm := serve(t, p.options.Sockets, "vm", &peer{is: byDefault})
	serve(t, p.options.Sockets, "hostile", &peer{is: byDefault, answer: func(string) string {
		if hostile {
			return "nonsense\n"
		}
		return ""
	}})
	p.Apply(t.Context(), modelOf("vm", "hostile"))
	p.step(t.Context())
	hostile = true
	next := again(p)
	require.NoError(t, next.Remove(t.Context()))
	require.Equal(t, byDefault, vm.now())
	_, err := os.Stat(p.options.Records)
	require.True(t, errors.Is(err, os.ErrNotExist))
}
