// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	apiextensionsvalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"braid.dev/braid/config/crd"
)

// definition is what the API server knows of one version of a kind.
type definition struct {
	namespaced bool
	schema     *structuralschema.Structural
	values     apiextensionsvalidation.SchemaValidator
	rules      *cel.Validator // nil where the schema has none
}

// definitions are by kind and then by version. Each is compiled when it is first
// needed, which takes some tenths of a second.
type definitions map[string]map[string]func() (*definition, error)

// builtIn are the definitions that are built in, read once.
var builtIn = sync.OnceValues(load)

func load() (definitions, error) {
	files, err := fs.Glob(crd.Files, "*.yaml")
	if err != nil {
		return nil, fmt.Errorf("listing the definitions of Braid's kinds: %w", err)
	}
	all := definitions{}
	for _, name := range files {
		if err := all.add(name); err != nil {
			return nil, fmt.Errorf("reading the definition %s: %w", name, err)
		}
	}
	return all, nil
}

func (d definitions) add(name string) error {
	data, err := crd.Files.ReadFile(name)
	if err != nil {
		return err
	}
	var object apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(data, &object); err != nil {
		return err
	}
	kind := object.Spec.Names.Kind
	d[kind] = map[string]func() (*definition, error){}
	for i := range object.Spec.Versions {
		version := &object.Spec.Versions[i]
		if !version.Served {
			continue
		}
		d[kind][version.Name] = sync.OnceValues(func() (*definition, error) {
			return compile(version.Schema, object.Spec.Scope == apiextensionsv1.NamespaceScoped)
		})
	}
	return nil
}

func compile(given *apiextensionsv1.CustomResourceValidation, namespaced bool) (*definition, error) {
	var schema apiextensions.CustomResourceValidation
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(given, &schema, nil); err != nil {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(schema.OpenAPIV3Schema)
	if err != nil {
		return nil, err
	}
	values, _, err := apiextensionsvalidation.NewSchemaValidator(schema.OpenAPIV3Schema)
	if err != nil {
		return nil, err
	}
	return &definition{namespaced: namespaced, schema: structural, values: values, rules: cel.NewValidator(structural, true, celconfig.PerCallLimit)}, nil
}

// problem is something wrong at a place of an object.
type problem struct{ field, message string }

// check judges an object as the API server does when it is created, with unknown
// fields refused, and fills in its defaults.
func (d *definition) check(ctx context.Context, object *unstructured.Unstructured) []problem {
	problems, err := d.prune(object)
	if err != nil {
		return append(problems, problem{"metadata", err.Error()})
	}
	defaulting.Default(object.Object, d.schema)
	for _, wrong := range d.validate(ctx, object) {
		problems = append(problems, problem{wrong.Field, wrong.ErrorBody()})
	}
	return problems
}

// prune takes out what the schema does not know.
func (d *definition) prune(object *unstructured.Unstructured) ([]problem, error) {
	kind, version := object.GetKind(), object.GetAPIVersion()
	meta, found, unknown, err := objectmeta.GetObjectMetaWithOptions(object.Object, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true})
	if err != nil {
		return nil, err
	}
	unknown = append(unknown, pruning.PruneWithOptions(object.Object, d.schema, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})...)
	defaulting.PruneNonNullableNullsWithoutDefaults(object.Object, d.schema)
	object.SetKind(kind)
	object.SetAPIVersion(version)
	if found {
		if err := objectmeta.SetObjectMeta(object.Object, meta); err != nil {
			return nil, err
		}
	}
	problems := make([]problem, 0, len(unknown))
	for _, path := range unknown {
		problems = append(problems, problem{path, fmt.Sprintf("unknown field %q%s", path, d.known(path))})
	}
	return problems, nil
}

// generatedSuffix stands for what the server appends to generateName.
const generatedSuffix = "xxxxx"

func (d *definition) validate(ctx context.Context, object *unstructured.Unstructured) field.ErrorList {
	if object.GetName() == "" && object.GetGenerateName() != "" {
		object.SetName(object.GetGenerateName() + generatedSuffix)
	}
	wrong := validation.ValidateObjectMetaAccessor(object, d.namespaced, validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	wrong = append(wrong, apiextensionsvalidation.ValidateCustomResource(nil, object.Object, d.values)...)
	wrong = append(wrong, objectmeta.Validate(nil, object.Object, d.schema, false)...)
	wrong = append(wrong, listtype.ValidateListSetsAndMaps(nil, d.schema, object.Object)...)
	if d.rules == nil || slices.ContainsFunc(wrong, keepsRulesFromRunning) {
		return wrong
	}
	broken, _ := d.rules.Validate(ctx, nil, d.schema, object.Object, nil, celconfig.RuntimeCELCostBudget)
	return append(wrong, broken...)
}

// keepsRulesFromRunning is true of what makes the API server judge no CEL rule.
func keepsRulesFromRunning(wrong *field.Error) bool {
	switch wrong.Type {
	case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
		return true
	}
	return false
}

var index = regexp.MustCompile(`\[[^]]*\]`)

// known says which fields are known beside one that is not.
func (d *definition) known(path string) string {
	steps := strings.Split(index.ReplaceAllString(path, ""), ".")
	at := d.schema
	for _, step := range steps[:len(steps)-1] {
		next, ok := at.Properties[step]
		if !ok {
			return ""
		}
		for at = &next; at.Items != nil; {
			at = at.Items
		}
	}
	if len(at.Properties) == 0 {
		return ""
	}
	return "; known here are " + strings.Join(slices.Sorted(maps.Keys(at.Properties)), ", ")
}
