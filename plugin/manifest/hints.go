// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

// pod judges the annotations of a pod, or of the template of some.
func (c *checker) pod(t *template, decision *policy.Decision) {
	if t.metadata != "metadata" {
		c.misplaced(t)
	}
	for _, key := range slices.Sorted(maps.Keys(t.pod.Annotations)) {
		value := t.pod.Annotations[key]
		if !strings.HasPrefix(key, policy.AnnotationPrefix) {
			continue
		}
		if severity, message := hint(key, value, decision); message != "" {
			c.add(t.finding(fmt.Sprintf("%s.annotations[%s]", t.metadata, key), severity, message))
		}
	}
}

// misplaced finds annotations that are beside the template instead of in it.
func (c *checker) misplaced(t *template) {
	for key := range t.Object.GetAnnotations() {
		if isKnown(key) {
			c.add(t.finding(fmt.Sprintf("metadata.annotations[%s]", key), Warning,
				"it has no effect here: annotations of pods belong into "+t.metadata+".annotations"))
		}
	}
}

func isKnown(key string) bool {
	return key == v1alpha1.AnnotationVirtualMachine || slices.Contains(policy.HintAnnotations(), key)
}

// hint says what is wrong with one annotation; nothing if the message is empty.
func hint(key, value string, decision *policy.Decision) (Severity, string) {
	if !isKnown(key) {
		return Warning, policy.UnknownAnnotation()
	}
	if err := read(key, value); err != nil {
		return Error, fmt.Sprintf("%q: %v", value, err)
	}
	switch {
	case decision == nil:
		return "", ""
	case decision.Ignored != "":
		return Warning, "it has no effect: " + decision.Ignored
	case decision.Winner == nil:
		return Warning, "no policy among the manifests selects the pod: without one the annotation has no effect"
	}
	return Warning, refusals(key, decision)
}

// read reads a value as the controller does.
func read(key, value string) error {
	switch key {
	case v1alpha1.AnnotationVirtualMachine:
		if value != "true" && value != "false" {
			return errors.New(`it is neither true nor false; give "true" where the pod holds a virtual machine`)
		}
		return nil
	case v1alpha1.AnnotationMaxRate:
		if _, err := policy.ParseMaxRate(value); err != nil {
			return fmt.Errorf("it is no rate: %w; give bits a second, such as 200M, from 8k to 10T", err)
		}
		return nil
	}
	if _, err := policy.ParsePathList(value); err != nil {
		return fmt.Errorf("it is no list of paths: %w; give names of paths with commas between them", err)
	}
	return nil
}

func refusals(key string, decision *policy.Decision) string {
	var messages []string
	for _, refused := range decision.RefusedHints {
		if refused.Annotation == key {
			messages = append(messages, refused.Message)
		}
	}
	return strings.Join(messages, "; ")
}
