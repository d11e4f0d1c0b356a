// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/api/v1alpha1"
)

// claimed is a node whose plan may give the address of uid1 to uid2 too.
type claimed struct {
	t       *testing.T
	pins    string
	builder *Builder
	from    Sources
	look    map[string]endpoints.Endpoint
}

const (
	firstAddress  = "10.1.0.1"
	secondAddress = "10.1.0.2"
)

func newClaimed(t *testing.T) *claimed {
	c := &claimed{t: t, pins: filepath.Join(bpffs(t), "braid"), from: sourcesOf([]int{1}, nil, []int{1, 2})}
	c.look = map[string]endpoints.Endpoint{"uid1": {HostIndex: 7}, "uid2": {HostIndex: 8}}
	c.builder = NewBuilder(OpenRegistry(c.pins, logr.Discard()))
	t.Cleanup(func() { must(t, 0, c.builder.Close()) })
	return c
}

func (c *claimed) restart() {
	must(c.t, 0, c.builder.Close())
	c.builder = NewBuilder(OpenRegistry(c.pins, logr.Discard()))
}

func (c *claimed) find() *Model {
	c.t.Helper()
	model, _, err := c.builder.Find(build(c.t, c.builder, c.from), endpoints.NewSnapshot(c.look, nil), true)
	return must(c.t, model, err)
}

func (c *claimed) give(pod int, addresses ...string) {
	c.from.Plan.Spec.Endpoints[pod].Addresses = addresses
}

// expect expects addresses of both pods after a look, and before the next one, and
// whether they are told that something is wrong.
func (c *claimed) expect(first, second string, told bool) {
	c.t.Helper()
	found := c.find()
	for _, model := range []*Model{found, build(c.t, c.builder, c.from)} {
		if got := fmt.Sprint(model.Endpoints[0].Addresses, model.Endpoints[1].Addresses); got != "["+first+"] ["+second+"]" {
			c.t.Errorf("the pods have %s, want %q and %q", got, first, second)
		}
	}
	report := Report{}
	for _, status := range report.Statuses(found) {
		if (status.State == v1alpha1.EndpointFailed) != told {
			c.t.Errorf("the status of %s is %s: %s", status.UID, status.State, status.Message)
		}
	}
}

func TestWhoHadAnAddressFirstKeepsIt(t *testing.T) {
	c := newClaimed(t)
	c.expect(firstAddress, secondAddress, false)
	c.give(1, firstAddress, secondAddress)
	for range 2 {
		c.expect(firstAddress, secondAddress, true)
		c.restart()
		if model := build(t, c.builder, c.from); fmt.Sprint(model.Endpoints[0].Addresses) != "["+firstAddress+"]" || len(model.Endpoints[1].Addresses) > 1 {
			t.Errorf("after a restart, before a look: %v and %v", model.Endpoints[0].Addresses, model.Endpoints[1].Addresses)
		}
	}
	c.give(1, secondAddress)
	c.expect(firstAddress, secondAddress, false)
}

func TestOfTwoNewPodsWithOneAddressNoneHasIt(t *testing.T) {
	c := newClaimed(t)
	c.give(1, firstAddress, secondAddress)
	for range 2 {
		c.expect("", secondAddress, true)
		c.restart()
	}
	c.give(0, "10.1.0.9")
	c.expect("10.1.0.9", firstAddress+" "+secondAddress, false)
}

func TestTheAddressOfAPodThatIsGoneIsTheNextOnes(t *testing.T) {
	c := newClaimed(t)
	c.expect(firstAddress, secondAddress, false)
	c.give(1, firstAddress, secondAddress)
	delete(c.look, "uid1")
	c.find()
	model := c.find()
	if got := fmt.Sprint(model.Endpoints[1].Addresses); got != "["+firstAddress+" "+secondAddress+"]" || model.Endpoints[1].Contradiction != nil {
		t.Errorf("the next pod has %s, and is told %v", got, model.Endpoints[1].Contradiction)
	}
}

func TestAnAddressWhoseRouteLeadsToAnotherPodIsWithheldFromNewPodsAlone(t *testing.T) {
	disputed := endpoints.Endpoint{HostIndex: 7, Disputed: []netip.Addr{netip.MustParseAddr(firstAddress)}, Contradiction: errors.New("another's")}
	for name, had := range map[string]bool{"a new pod": false, "a pod that had it": true} {
		t.Run(name, func(t *testing.T) {
			c := newClaimed(t)
			want := ""
			if had {
				c.find()
				want = firstAddress
			}
			c.look["uid1"] = disputed
			for range 2 {
				model := c.find()
				if got := fmt.Sprint(model.Endpoints[0].Addresses); got != "["+want+"]" || !strings.Contains(fmt.Sprint(model.Endpoints[0].Contradiction), "another's") {
					t.Errorf("it has %s, and is told %v", got, model.Endpoints[0].Contradiction)
				}
				c.restart()
			}
		})
	}
}

// An endpoint that an earlier agent gave another's interface loses it to the one that is
// found there.
func TestAnInterfaceIsTheOneOfWhoIsFoundThere(t *testing.T) {
	c := newClaimed(t)
	c.look = map[string]endpoints.Endpoint{"uid1": {HostIndex: 7}}
	c.find()
	c.look = map[string]endpoints.Endpoint{"uid2": {HostIndex: 7}}
	model := c.find()
	if model.Endpoints[0].HostInterface != 0 || model.Endpoints[1].HostInterface != 7 {
		t.Errorf("the pods have %d and %d", model.Endpoints[0].HostInterface, model.Endpoints[1].HostInterface)
	}
}

func TestTheInterfacesOfEarlierAgentsAreNotBelieved(t *testing.T) {
	c := newClaimed(t)
	c.find()
	if pods := build(t, c.builder, c.from).Pods(); pods[0].Interface != 7 {
		t.Errorf("the pods to look for are %+v", pods)
	}
	must(t, 0, c.builder.registry.found("uid1", 9, bridged)) // as they wrote it
	c.restart()
	model := build(t, c.builder, c.from)
	if pods := model.Pods(); pods[0].Interface != 0 || pods[1].Interface != 8 || model.Endpoints[0].HostInterface != 9 {
		t.Errorf("after a restart the pods to look for are %+v", pods)
	}
}

// A VM has no address that nothing proves: not before a look, and not while its node routes
// it elsewhere.
func TestAVMHasAnAddressWhileTheNodeRoutesItThere(t *testing.T) {
	c := newClaimed(t)
	c.from.Plan.Spec.Endpoints[1].Guest = &v1alpha1.PlanGuest{}
	address := netip.MustParseAddr(secondAddress)
	if model := build(t, c.builder, c.from); len(model.Endpoints[1].Addresses) != 0 {
		t.Errorf("before the first look it has %v", model.Endpoints[1].Addresses)
	}
	c.expect(firstAddress, secondAddress, false)
	c.restart()
	if model := build(t, c.builder, c.from); len(model.Endpoints[1].Addresses) != 1 {
		t.Error("another agent does not know what the last one proved")
	}
	c.look["uid2"] = endpoints.Endpoint{HostIndex: 8, Disputed: []netip.Addr{address}}
	c.expect(firstAddress, "", false)
	c.look["uid2"] = endpoints.Endpoint{HostIndex: 8}
	c.expect(firstAddress, secondAddress, false)
	delete(c.look, "uid2")
	c.expect(firstAddress, "", false)
}

func TestAVMDoesNotGetANICOfTheNode(t *testing.T) {
	c := newClaimed(t)
	c.from.Plan.Spec.Endpoints[1].Guest = &v1alpha1.PlanGuest{}
	nic := build(t, c.builder, c.from).Paths[0].Interface
	c.look["uid2"] = endpoints.Endpoint{HostIndex: nic, HostInterface: "eth0"}
	found := c.find().Endpoints[1]
	if found.Found != nil || len(found.Interfaces()) != 0 || len(found.Addresses) != 0 || !strings.Contains(found.Missing.Error(), "eth0 is a NIC of the node") {
		t.Errorf("it has %v at %v: %v", found.Addresses, found.Interfaces(), found.Missing)
	}
}
