// SPDX-License-Identifier: Apache-2.0

package testutil

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/config/crd"
)

// ActionTypes are the actions that the API server accepts in a rule.
func ActionTypes(t TB) (actions []v1alpha1.ActionType) {
	t.Helper()
	text, err := crd.Files.ReadFile("braid.dev_mptcppolicies.yaml")
	if err != nil {
		t.Fatalf("%v", err)
	}
	var definition apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &definition); err != nil {
		t.Fatalf("%v", err)
	}
	rule := definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["rules"].Items.Schema
	for _, value := range rule.Properties["actions"].Items.Schema.Properties["type"].Enum {
		var action v1alpha1.ActionType
		if err := yaml.Unmarshal(value.Raw, &action); err != nil {
			t.Fatalf("%v", err)
		}
		actions = append(actions, action)
	}
	return actions
}
