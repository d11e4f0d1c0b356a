// SPDX-License-Identifier: Apache-2.0

// Package manifest judges manifests where there is no cluster: Braid's objects by
// the definitions that are built in, as the API server would; all of them together
// by the compile of the controller; and the annotations of pods and of their
// templates.
package manifest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"braid.dev/braid/api/v1alpha1"
)

// Severity of a finding.
type Severity string

const (
	// Error is what the API server would refuse, or what cannot work.
	Error Severity = "Error"
	// Warning is what the API server would accept and may not be meant so.
	Warning Severity = "Warning"
)

// Finding is what is wrong at one place.
type Finding struct {
	File     string `json:"file"`
	Document int    `json:"document"`
	// Object is kind, namespace and name; empty where none could be read.
	Object string `json:"object,omitempty"`
	// Field is empty where the object as a whole is meant.
	Field    string   `json:"field,omitempty"`
	Severity Severity `json:"severity"`
	// Message says what is wrong and, where that can be said, what is allowed.
	Message string `json:"message"`
	// Refused is true for what the API server would refuse.
	Refused bool `json:"refused,omitempty"`
}

// Report is what was found.
type Report struct {
	// Objects of Braid that were judged.
	Objects int `json:"objects"`
	// Pods are pods and templates of pods that were looked at.
	Pods int `json:"pods"`
	// Others are objects of other kinds, of which nothing was judged.
	Others   int       `json:"others"`
	Errors   int       `json:"errors"`
	Warnings int       `json:"warnings"`
	Findings []Finding `json:"findings"`
}

// entry is a document with an object that can be told apart.
type entry struct {
	Document
	name string // kind, namespace and name
}

func (e *entry) finding(field string, severity Severity, message string) Finding {
	return Finding{File: e.File, Document: e.Number, Object: e.name, Field: field, Severity: severity, Message: message}
}

// refusal is a finding that the API server would make too.
func (e *entry) refusal(field, message string) Finding {
	finding := e.finding(field, Error, message)
	finding.Refused = true
	return finding
}

// checker gathers what is known of the documents so far.
type checker struct {
	definitions definitions
	namespace   string
	report      Report
	input       input
	seen        map[string]*entry
}

// Check judges documents. Objects without a namespace that need one are taken to be
// in the one given. It changes the documents' objects: defaults are filled in.
func Check(ctx context.Context, documents []Document, namespace string) (*Report, error) {
	known, err := builtIn()
	if err != nil {
		return nil, err
	}
	c := &checker{definitions: known, namespace: namespace, report: Report{Findings: []Finding{}}, seen: map[string]*entry{}}
	for i := range documents {
		c.document(ctx, &documents[i])
	}
	c.compile()
	c.finish()
	return &c.report, nil
}

func (c *checker) add(findings ...Finding) {
	c.report.Findings = append(c.report.Findings, findings...)
}

func (c *checker) document(ctx context.Context, document *Document) {
	e := &entry{Document: *document}
	if e.Problem != "" {
		c.add(e.refusal("", e.Problem))
		return
	}
	if e.Object.GetKind() == "" || e.Object.GetAPIVersion() == "" {
		c.add(e.refusal("", "apiVersion and kind are needed"))
		return
	}
	e.name = nameOf(e.Object)
	switch group := e.Object.GroupVersionKind(); {
	case group.Group == v1alpha1.GroupVersion.Group:
		c.ours(ctx, e, group)
	case c.input.addOther(e, c.namespace):
		c.report.Pods++
	default:
		c.report.Others++
	}
}

func nameOf(object *unstructured.Unstructured) string {
	name := cmp.Or(object.GetName(), object.GetGenerateName())
	if object.GetNamespace() != "" {
		name = object.GetNamespace() + "/" + name
	}
	return strings.TrimSpace(object.GetKind() + " " + name)
}

// ours judges an object of Braid's.
func (c *checker) ours(ctx context.Context, e *entry, group schema.GroupVersionKind) {
	c.report.Objects++
	versions, ok := c.definitions[group.Kind]
	if !ok {
		c.add(e.refusal("kind", fmt.Sprintf("Braid has no kind %s; it has %s", group.Kind, list(maps.Keys(c.definitions)))))
		return
	}
	compiled, ok := versions[group.Version]
	if !ok {
		c.add(e.refusal("apiVersion", fmt.Sprintf("%s has no version %s; it has %s", group.Kind, group.Version, list(maps.Keys(versions)))))
		return
	}
	definition, err := compiled()
	if err != nil {
		c.add(e.finding("", Error, fmt.Sprintf("its definition cannot be used: %v", err)))
		return
	}
	c.place(e, definition.namespaced)
	problems := definition.check(ctx, e.Object)
	for _, problem := range problems {
		c.add(e.refusal(problem.field, problem.message))
	}
	if c.isNew(e) && len(problems) == 0 {
		if err := c.input.addOurs(e); err != nil {
			c.add(e.finding("", Error, err.Error()))
		}
	}
}

// place gives an object its namespace, or takes one away that means nothing.
func (c *checker) place(e *entry, namespaced bool) {
	given := e.Object.GetNamespace()
	switch {
	case namespaced:
		e.Object.SetNamespace(cmp.Or(given, c.namespace))
	case given != "":
		e.Object.SetNamespace("")
	}
	e.name = nameOf(e.Object)
	if !namespaced && given != "" {
		c.add(e.finding("metadata.namespace", Warning, e.Object.GetKind()+" belongs to no namespace: this one has no effect"))
	}
}

// isNew is false for an object that came before: applied together, one undoes the other.
func (c *checker) isNew(e *entry) bool {
	if e.Object.GetGenerateName() != "" {
		return true
	}
	if before, known := c.seen[e.name]; known {
		c.add(e.finding("metadata.name", Error, fmt.Sprintf("the same object is in %s, document %d", before.File, before.Number)))
		return false
	}
	c.seen[e.name] = e
	return true
}

// finish counts and sorts: by file, document, and errors first.
func (c *checker) finish() {
	slices.SortStableFunc(c.report.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Document, b.Document),
			cmp.Compare(a.Object, b.Object), cmp.Compare(a.Severity, b.Severity))
	})
	for _, finding := range c.report.Findings {
		if finding.Severity == Error {
			c.report.Errors++
		} else {
			c.report.Warnings++
		}
	}
}
