// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds the objects that admins, tenants, the controller and
// the agents exchange: paths, policies, nodes and node plans.
// +kubebuilder:object:generate=true
// +groupName=braid.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of every object in this package.
var GroupVersion = schema.GroupVersion{Group: "braid.dev", Version: "v1alpha1"}

// SchemeBuilder collects the functions that add this package's types to a scheme.
var SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

// AddToScheme adds this package's types to a scheme.
var AddToScheme = SchemeBuilder.AddToScheme

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&MPTCPPath{}, &MPTCPPathList{},
		&MPTCPPolicy{}, &MPTCPPolicyList{},
		&ClusterMPTCPPolicy{}, &ClusterMPTCPPolicyList{},
		&MPTCPGuardrail{}, &MPTCPGuardrailList{},
		&MPTCPEndpoint{}, &MPTCPEndpointList{},
		&MPTCPNode{}, &MPTCPNodeList{},
		&MPTCPNodePlan{}, &MPTCPNodePlanList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
