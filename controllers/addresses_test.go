// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

// addressedNode makes a Node as a kubelet and a cluster's controller do.
func (k *cluster) addressedNode(name, address, podRange string) {
	k.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: []string{podRange}, PodCIDR: podRange}}
	k.create(node)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}, {Type: corev1.NodeHostName, Address: name}}
	if err := k.Status().Update(context.Background(), node); err != nil {
		k.t.Fatal(err)
	}
}

// claim reports addresses as the agent of a node: all of them as the node's, and those
// of the form path=address on that path too.
func (k *cluster) claim(node string, words ...string) {
	k.t.Helper()
	member := &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: node}}
	for _, word := range words {
		path, address, onPath := strings.Cut(word, "=")
		if !onPath {
			address = path
		} else {
			member.Status.Paths = append(member.Status.Paths, v1alpha1.NodePath{
				Name: v1alpha1.PathName(path), State: v1alpha1.LinkUp, Addresses: []string{address},
			})
		}
		member.Status.Addresses = append(member.Status.Addresses, address)
	}
	member.Status.PathsTotal = int32(len(member.Status.Paths))
	member.Status.PathsUp = member.Status.PathsTotal
	(&agent{k: k, node: node}).apply(member, "MPTCPNode")
}

// waitForConfirmed waits until just these addresses are confirmed of a node, and the
// condition has this reason, and its message the words behind a colon, if there is one.
// It returns how long it took to confirm, and the condition.
func (k *cluster) waitForConfirmed(node, wanted string, addresses ...string) (time.Duration, metav1.Condition) {
	k.t.Helper()
	begin := time.Now()
	var took time.Duration
	reason, says, _ := strings.Cut(wanted, ": ")
	member := &v1alpha1.MPTCPNode{}
	k.eventually(func() error {
		if err := k.Get(context.Background(), client.ObjectKey{Name: node}, member); err != nil {
			return err
		}
		var found []string
		if member.Spec == nil {
			return fmt.Errorf("nothing was judged of node %s", node)
		}
		for _, c := range member.Spec.Confirmed {
			found = append(found, c.Address)
		}
		slices.Sort(found)
		if !slices.Equal(found, addresses) {
			return fmt.Errorf("node %s has %v, want %v", node, found, addresses)
		}
		if took == 0 {
			took = time.Since(begin)
		}
		c := meta.FindStatusCondition(member.Status.Conditions, v1alpha1.ConditionAddressesConfirmed)
		if c == nil || c.Reason != reason || !strings.Contains(c.Message, says) || c.ObservedGeneration != member.Generation {
			return fmt.Errorf("the condition of node %s is %+v, want %s", node, c, wanted)
		}
		return nil
	})
	return took, *meta.FindStatusCondition(member.Status.Conditions, v1alpha1.ConditionAddressesConfirmed)
}

// twoNodes have a path with ranges, one without, and agents that report the truth.
func twoNodes(t *testing.T) (k *cluster, restart func()) {
	k = newCluster(t)
	k.addressedNode("node-a", "192.0.2.1", "10.244.1.0/24")
	k.addressedNode("node-b", "192.0.2.2", "10.244.2.0/24")
	for name, ranges := range map[string][]v1alpha1.CIDR{"blue": {"192.0.2.0/24", "2001:db8::/64"}, "green": nil} {
		path := &v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: name}}
		path.Spec.Interfaces, path.Spec.AddressRanges = []v1alpha1.InterfacePattern{"eth1"}, ranges
		k.create(path)
	}
	stop := k.startController(apiServer)
	k.agent("node-a")
	k.agent("node-b")
	k.claim("node-a", "192.0.2.1", "green=203.0.113.1")
	_, c := k.waitForConfirmed("node-a", v1alpha1.ReasonUnproven, "192.0.2.1", "203.0.113.1")
	if c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, "green") {
		t.Errorf("of an address that nothing proves: %+v", c)
	}
	return k, func() { stop(); stop = k.startController(apiServer) }
}

func TestNothingIsConfirmedThatAnAgentForges(t *testing.T) {
	k, restart := twoNodes(t)
	for name, c := range map[string]struct {
		report, reason, says string
	}{
		"another node's address":          {"192.0.2.1", v1alpha1.ReasonDuplicate, "is in the status of node-a"},
		"another node's address, mapped":  {"blue=::ffff:192.0.2.1", v1alpha1.ReasonDuplicate, "192.0.2.1 is in the status of node-a"},
		"another node's, without a range": {"green=203.0.113.1", v1alpha1.ReasonDuplicate, "belongs to node-a"},
		"a gateway out of the range":      {"blue=198.51.100.254", v1alpha1.ReasonOutOfRange, "addressRanges of path blue"},
		"an IPv6 gateway":                 {"blue=2001:db9::1", v1alpha1.ReasonOutOfRange, "addressRanges of path blue"},
		"a link-local gateway":            {"green=fe80::1", v1alpha1.ReasonNotUnicast, "fe80::1"},
		"the range of others' pods":       {"green=10.244.1.9", v1alpha1.ReasonPodRange, "pods' range"},
		"everything":                      {"green=0.0.0.0", v1alpha1.ReasonNotUnicast, "0.0.0.0"},
		"garbage":                         {"green='; drop", v1alpha1.ReasonMalformed, "is no address"},
	} {
		t.Run(name, func(t *testing.T) {
			k.t = t
			k.claim("node-b", "192.0.2.2", c.report)
			_, condition := k.waitForConfirmed("node-b", c.reason+": "+c.says, "192.0.2.2")
			if condition.Status != metav1.ConditionFalse {
				t.Errorf("the condition is %+v", condition)
			}
		})
	}
	k.t = t
	k.claim("node-b", "192.0.2.2", "green=203.0.113.1")
	k.waitForConfirmed("node-b", v1alpha1.ReasonDuplicate, "192.0.2.2")
	_, c := k.waitForConfirmed("node-a", v1alpha1.ReasonDuplicate, "192.0.2.1", "203.0.113.1")
	if c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, "node-b") {
		t.Errorf("the node that keeps its address is told: %+v", c)
	}
	// What is told to a node leaves what its agent wrote.
	node := &v1alpha1.MPTCPNode{}
	if err := k.Get(context.Background(), client.ObjectKey{Name: "node-a"}, node); err != nil || node.Status.PathsUp == 0 || node.Status.PathsTotal == 0 {
		t.Errorf("%d of %d paths are up: %v", node.Status.PathsUp, node.Status.PathsTotal, err)
	}
	restart()
	k.claim("node-b", "192.0.2.2", "green=203.0.113.1", "blue=192.0.2.22")
	k.waitForConfirmed("node-b", v1alpha1.ReasonDuplicate, "192.0.2.2", "192.0.2.22")
	k.waitForConfirmed("node-a", v1alpha1.ReasonDuplicate, "192.0.2.1", "203.0.113.1")
}

func TestAnAddressStaysItsNodesWhileItsNICIsDown(t *testing.T) {
	k, _ := twoNodes(t)
	k.claim("node-a", "192.0.2.1")
	k.claim("node-b", "192.0.2.2", "green=203.0.113.1")
	k.waitForConfirmed("node-b", v1alpha1.ReasonDuplicate, "192.0.2.2")
	k.claim("node-a", "192.0.2.1", "green=203.0.113.11") // another one: now it is free
	k.waitForConfirmed("node-b", v1alpha1.ReasonUnproven, "192.0.2.2", "203.0.113.1")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	if err := k.Get(context.Background(), client.ObjectKeyFromObject(node), node); err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "203.0.113.1"})
	if err := k.Status().Update(context.Background(), node); err != nil { // and now its Node has it
		t.Fatal(err)
	}
	k.waitForConfirmed("node-b", v1alpha1.ReasonDuplicate, "192.0.2.2")
}

// What agents measure all the time confirms nothing anew, and a report is confirmed
// while a user would not notice.
func TestAddressesAreConfirmedSoonAndOnce(t *testing.T) {
	k, _ := twoNodes(t)
	var slowest time.Duration
	for i := range 20 {
		address := fmt.Sprintf("192.0.2.%d", 20+i)
		k.claim("node-b", "192.0.2.2", "blue="+address)
		wanted := []string{"192.0.2.2", address}
		took, _ := k.waitForConfirmed("node-b", v1alpha1.ReasonConfirmed, wanted...)
		slowest = max(slowest, took)
	}
	t.Logf("the slowest of 20 reports was confirmed after %s", slowest)
	member := &v1alpha1.MPTCPNode{}
	if err := k.Get(context.Background(), client.ObjectKey{Name: "node-b"}, member); err != nil {
		t.Fatal(err)
	}
	generation := member.Generation
	for i := range 5 {
		if err := k.Status().Patch(context.Background(), member, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"status":{"kernelRelease":"6.18.%d"}}`, i))); err != nil {
			t.Fatal(err)
		}
	}
	k.claim("node-a", "192.0.2.1", "green=203.0.113.1", "blue=192.0.2.11")
	k.waitForConfirmed("node-a", v1alpha1.ReasonUnproven, "192.0.2.1", "192.0.2.11", "203.0.113.1")
	if err := k.Get(context.Background(), client.ObjectKey{Name: "node-b"}, member); err != nil || member.Generation != generation {
		t.Errorf("the spec was written %d times for nothing: %v", member.Generation-generation, err)
	}
}

// waitForPodRanges waits until the MPTCPNode of a node has just these.
func (k *cluster) waitForPodRanges(node string, ranges ...string) {
	k.t.Helper()
	k.eventually(func() error {
		var member v1alpha1.MPTCPNode
		if err := k.Get(context.Background(), client.ObjectKey{Name: node}, &member); err != nil {
			return err
		}
		if member.Spec == nil || !slices.Equal(member.Spec.PodRanges, ranges) {
			return fmt.Errorf("node %s has %+v, want %v", node, member.Spec, ranges)
		}
		return nil
	})
}

// routedPath makes a path whose subnets routers join.
func (k *cluster) routedPath() {
	k.t.Helper()
	path := &v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: "red"}}
	path.Spec.Interfaces, path.Spec.AddressRanges, path.Spec.Underlay = []v1alpha1.InterfacePattern{"eth2"}, []v1alpha1.CIDR{"198.51.100.0/24"}, v1alpha1.UnderlayRouted
	k.create(path)
}

// A cluster network that goes by blocks of its own gives nodes addresses beside their podCIDRs.
func TestPodsRangesFollowThePodsWithOtherAddresses(t *testing.T) {
	k, _ := twoNodes(t)
	k.claim("node-b", "192.0.2.2")
	k.waitForPodRanges("node-b")
	k.routedPath()
	k.waitForPodRanges("node-a", "10.244.1.0/24")
	k.waitForPodRanges("node-b", "10.244.2.0/24")
	stray := k.pod("stray", "node-a", "10.244.2.7", nil)
	k.waitForPodRanges("node-a", "10.244.1.0/24", "10.244.2.0/26")
	k.waitForPodRanges("node-b", "10.244.2.0/24")
	own := k.pod("own", "node-b", "10.244.2.9", nil) // in the range of its Node, and in that block
	k.waitForPodRanges("node-a", "10.244.1.0/24", "10.244.2.7/32")
	k.delete(own) // nothing is looked at anew for it: the block is told with the next that is
	k.pod("another", "node-a", "10.244.2.8", nil)
	k.waitForPodRanges("node-a", "10.244.1.0/24", "10.244.2.0/26")
	k.delete(stray)
	k.waitForPodRanges("node-a", "10.244.1.0/24", "10.244.2.0/26")
}

// Nothing but its node says that an address which is in no range of pods is a pod's.
func TestAPodsAddressCountsWhereTheAdminSaysThatItCanBeOne(t *testing.T) {
	k, restart := twoNodes(t)
	k.routedPath()
	k.pod("stray", "node-a", "203.0.113.77", nil)
	k.waitForPodRanges("node-a", "10.244.1.0/24")
	k.waitForPodsLeftOut("node-a", 1)
	k.options.PodRanges = []netip.Prefix{netip.MustParsePrefix("203.0.113.64/26")}
	restart()
	k.waitForPodRanges("node-a", "10.244.1.0/24", "203.0.113.64/26")
	k.waitForPodsLeftOut("node-a", 0)
}

func (k *cluster) waitForPodsLeftOut(node string, count int32) {
	k.t.Helper()
	k.eventually(func() error {
		var member v1alpha1.MPTCPNode
		if err := k.Get(context.Background(), client.ObjectKey{Name: node}, &member); err != nil {
			return err
		}
		if member.Spec == nil || member.Spec.PodsLeftOut != count {
			return fmt.Errorf("node %s has %+v, want %d pods that are left out", node, member.Spec, count)
		}
		return nil
	})
}

// In a cluster whose network gives pods other addresses each pod is such.
func TestPodsWithOtherAddressesHaveNothingDecidedWhereNoPathIsRouted(t *testing.T) {
	k, _ := twoNodes(t)
	var owners atomic.Pointer[policy.PodOwners]
	passes := strays(k.Client, &owners)
	stray := event.CreateEvent{Object: k.pod("stray", "node-a", "10.244.2.7", nil)}
	own := event.CreateEvent{Object: k.pod("own", "node-b", "10.244.2.9", nil)}
	require.False(t, passes.Create(stray))
	k.routedPath()
	require.True(t, passes.Create(stray))
	require.False(t, passes.Create(own))
	owners.Store(policy.OwnersOf(map[string]*policy.NodeAddresses{"node-a": {PodRanges: []string{"10.244.2.0/26"}}, "node-b": {PodRanges: []string{"10.244.2.0/24"}}}))
	require.True(t, passes.Create(own), "as others take it for one of node-a")
}
