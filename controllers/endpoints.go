// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

// addressField is the field of pods and MPTCPEndpoints that the cache has an index of.
const addressField = "braid.addresses"

func indexAddresses(ctx context.Context, indexer client.FieldIndexer) error {
	for _, object := range []client.Object{&corev1.Pod{}, &v1alpha1.MPTCPEndpoint{}} {
		if err := indexer.IndexField(ctx, object, addressField, addressesOf); err != nil {
			return fmt.Errorf("index %T by address: %w", object, err)
		}
	}
	return nil
}

// addressesOf are those that a pod has or an MPTCPEndpoint gives.
func addressesOf(object client.Object) (addresses []string) {
	var found []netip.Addr
	switch of := object.(type) {
	case *corev1.Pod:
		for address := range policy.Holders([]corev1.Pod{*of}) {
			found = append(found, address)
		}
	case *v1alpha1.MPTCPEndpoint:
		found = policy.AddressesOf([]v1alpha1.MPTCPEndpoint{*of})
	}
	for _, address := range found {
		addresses = append(addresses, address.String())
	}
	return addresses
}

// holders are the pods that have addresses of these endpoints.
func (r *planReconciler) holders(ctx context.Context, endpoints []v1alpha1.MPTCPEndpoint) (map[netip.Addr]policy.PodRef, error) {
	var pods []corev1.Pod
	for _, address := range policy.AddressesOf(endpoints) {
		var list corev1.PodList
		if err := r.client.List(ctx, &list, client.MatchingFields{addressField: address.String()}); err != nil {
			return nil, fmt.Errorf("list the pods with address %s: %w", address, err)
		}
		pods = append(pods, list.Items...)
	}
	return policy.Holders(pods), nil
}

// podHandler handles events of pods. They concern their nodes; where an MPTCPEndpoint
// gives the address of one, also that. The endpoint is in the cache before it is compiled,
// so that one of both events tells of the conflict.
func (r *planReconciler) podHandler() handler.EventHandler {
	return r.changes.handlerFor(func(object client.Object) {
		r.changes.add(nodeNameOf(object)...)
		for _, address := range addressesOf(object) {
			var claiming v1alpha1.MPTCPEndpointList
			err := r.client.List(context.Background(), &claiming, client.MatchingFields{addressField: address})
			if err != nil || len(claiming.Items) > 0 {
				r.changes.addCommon()
			}
		}
	})
}

func (r *statusReconciler) endpointWrites(ctx context.Context, observed *observation, o *objects) []func() error {
	planned := plannedGuests(observed.result)
	results := map[types.UID]*policy.GuestResult{}
	for i := range observed.result.Guests {
		results[observed.result.Guests[i].Endpoint.UID] = &observed.result.Guests[i]
	}
	var writes []func() error
	for i := range o.endpoints.Items {
		object := &o.endpoints.Items[i]
		if result := results[object.UID]; result != nil && result.Generation == object.Generation {
			status := endpointStatus(observed, result, planned[object.UID])
			writes = append(writes, func() error {
				return writeStatus(ctx, r.writer, object, &object.Status, status, endpointConditions)
			})
		}
	}
	return writes
}

func endpointConditions(s *v1alpha1.MPTCPEndpointStatus) *[]metav1.Condition { return &s.Conditions }

// plannedGuests are the VMs that plans should have, by UID.
func plannedGuests(result *policy.Result) map[types.UID]*v1alpha1.PlanEndpoint {
	planned := map[types.UID]*v1alpha1.PlanEndpoint{}
	for _, plan := range result.Plans {
		for i := range plan.Endpoints {
			if plan.Endpoints[i].Guest != nil {
				planned[plan.Endpoints[i].UID] = &plan.Endpoints[i]
			}
		}
	}
	return planned
}

// endpointStatus says what became of a VM; planned is nil where it is in no plan.
func endpointStatus(o *observation, result *policy.GuestResult, planned *v1alpha1.PlanEndpoint) *v1alpha1.MPTCPEndpointStatus {
	status := &v1alpha1.MPTCPEndpointStatus{}
	accepted := endpointAccepted(result)
	state, _ := o.pods.of(result.Endpoint)
	joins, agent := state.guestSubflows, state.guestAgent
	switch {
	case planned != nil:
		status.Policy, status.NotApplied, status.HostInterface = new(planned.Policy), planned.Guest.NotApplied, state.hostInterface
		state = state.of(policy.RuleOwner(planned.Policy))
	case len(result.Addresses) == 0 || result.NodeMissing:
		state = podState{reason: accepted.Reason, message: accepted.Message}
	default:
		state = podState{reason: v1alpha1.ReasonNotSelected, message: "no policy and no guardrail selects the VM, or its node has too many selected pods"}
	}
	programmed := condition(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, state.reason, state.message, result.Generation)
	if state.reason == v1alpha1.ReasonProgrammed {
		programmed.Status, programmed.Message = metav1.ConditionTrue, "the node carries the policy out for the guest's packets; nothing is configured in the guest, which opens its subflows itself"
		if planned.Subflows.Manager == v1alpha1.SubflowManagerHost {
			programmed.Message = "the node carries the policy out for the guest's packets, and announces ports on the connections that the guest begins; nothing is configured in the guest"
		}
	}
	status.Conditions = []metav1.Condition{accepted, programmed}
	if planned != nil {
		is := policy.SpreadingOf([]policy.Traffic{{Pod: result.Endpoint, Is: state.spreading}})
		status.Conditions = append(status.Conditions, condition(v1alpha1.ConditionSpreading, is.Status, is.Reason, is.Message, result.Generation))
		if planned.Subflows.Manager == v1alpha1.SubflowManagerHost {
			status.Conditions = append(status.Conditions, guestSubflows(joins, result.Generation))
		}
		if planned.Guest.AgentSocket != "" {
			status.Conditions = append(status.Conditions, guestAgent(agent, result.Generation))
		}
	}
	return status
}

// guestSubflows says what a guest makes of its node's announcements.
func guestSubflows(is v1alpha1.GuestSubflows, generation int64) metav1.Condition {
	switch is {
	case v1alpha1.GuestJoined:
		return condition(v1alpha1.ConditionGuestSubflows, metav1.ConditionTrue, v1alpha1.ReasonGuestJoins,
			"the guest opens subflows to the ports that its node announces", generation)
	case v1alpha1.GuestNotTaken:
		return condition(v1alpha1.ConditionGuestSubflows, metav1.ConditionFalse, v1alpha1.ReasonGuestTakesNoAnnouncements, v1alpha1.GuestRemedy, generation)
	}
	return condition(v1alpha1.ConditionGuestSubflows, metav1.ConditionUnknown, v1alpha1.ReasonNothingAnnounced,
		"no connection that the guest began by MPTCP has lasted long enough to be announced ports", generation)
}

// guestAgent says what a guest's agent made of the wish to have its limits raised.
func guestAgent(is *v1alpha1.GuestAgentStatus, generation int64) metav1.Condition {
	if is == nil {
		return condition(v1alpha1.ConditionGuestAgent, metav1.ConditionUnknown, v1alpha1.ReasonGuestAgentNotAsked, "the node's agent has not asked the guest's yet", generation)
	}
	switch is.State {
	case v1alpha1.GuestAgentUnreachable:
		return condition(v1alpha1.ConditionGuestAgent, metav1.ConditionFalse, v1alpha1.ReasonGuestAgentUnreachable, is.Message, generation)
	case v1alpha1.GuestAgentRefused:
		return condition(v1alpha1.ConditionGuestAgent, metav1.ConditionFalse, v1alpha1.ReasonGuestAgentRefused, is.Message, generation)
	}
	return condition(v1alpha1.ConditionGuestAgent, metav1.ConditionTrue, v1alpha1.ReasonGuestLimitsSet,
		"the guest's kernel follows what its node announces; what its limits were is put back when no policy asks for it any more", generation)
}

// endpointAccepted says whether the addresses are the VM's.
func endpointAccepted(result *policy.GuestResult) metav1.Condition {
	deny := func(reason, message string) metav1.Condition {
		return condition(v1alpha1.ConditionAccepted, metav1.ConditionFalse, reason, message, result.Generation)
	}
	if result.NodeMissing {
		return deny(v1alpha1.ReasonNodeNotFound, "there is no Node "+result.Endpoint.Node)
	}
	if len(result.Refused) == 0 {
		return condition(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "nothing else in the cluster has its addresses", result.Generation)
	}
	var texts []string
	for _, refused := range result.Refused {
		texts = append(texts, refused.Text+" "+refused.Detail)
	}
	message := strings.Join(texts, "; ")
	if len(result.Addresses) > 0 {
		message += ". The VM is known by its other addresses"
	}
	return deny(result.Refused[0].Reason, message)
}
