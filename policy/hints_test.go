// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"braid.dev/braid/api/v1alpha1"
)

func TestAPathList(t *testing.T) {
	for _, tc := range []struct {
		name, value string
		want        string // the error when it begins with "error: "
	}{
		{"of one path", "blue", "blue"},
		{"of several paths", "blue,green", "blue green"},
		{"with blanks around the names", " blue ,\tgreen\n", "blue green"},
		{"with a name that comes again", "blue,green,blue", "blue green"},
		{"with dots and dashes", "rack-1.blue,a--b", "rack-1.blue a--b"},
		{"that is empty", "", "error: it names no path"},
		{"of blanks", "  ", "error: it names no path"},
		{"with a comma at the end", "blue,", "error: there is nothing between two commas or beside one"},
		{"with upper-case letters", "Blue", `error: "Blue" cannot be the name of a path`},
		{"with other separators", "blue;green", `error: "blue;green" cannot be the name of a path`},
		{"in JSON", `["blue"]`, `error: "[\"blue\"]" cannot be the name of a path`},
		{"of too many paths", "a,b,c,d,e,f,g,h,i", "error: it names 9 paths, and a pod can have 8"},
		{"with a name that is too long", strings.Repeat("a", 64), `error: "` + strings.Repeat("a", 57) + `…" cannot be the name of a path`},
		{"that is much too long", strings.Repeat("a,", 1000), "error: it is too long"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			names, err := ParsePathList(tc.value)
			got := join(names, " ")
			if err != nil {
				got = "error: " + err.Error()
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestAMaxRate(t *testing.T) {
	for _, tc := range []struct {
		value string
		want  int64
		err   string
	}{
		{value: "200M", want: 200_000_000},
		{value: "1.5G", want: 1_500_000_000},
		{value: "1Gi", want: 1 << 30},
		{value: "8000", want: 8000},
		{value: "10T", want: 10_000_000_000_000},
		{value: "", err: "it cannot be read as a quantity"},
		{value: "200Mbit", err: "it cannot be read as a quantity"},
		{value: " 200M", err: "it cannot be read as a quantity"},
		{value: "0", err: "it is not between 8k and 10T"},
		{value: "-1G", err: "it is not between 8k and 10T"},
		{value: "7999", err: "it is not between 8k and 10T"},
		{value: "11T", err: "it is not between 8k and 10T"},
		{value: "1e400", err: "it is not between 8k and 10T"},
		{value: strings.Repeat("1", 21), err: "it is too long"},
	} {
		t.Run(tc.value, func(t *testing.T) {
			got, err := ParseMaxRate(tc.value)
			if got != tc.want || fmt.Sprint(err) != cmpErr(tc.err) {
				t.Errorf("got %d and %v, want %d and %s", got, err, tc.want, cmpErr(tc.err))
			}
		})
	}
}

func cmpErr(text string) string {
	if text == "" {
		return "<nil>"
	}
	return text
}

func TestAnAnnotationThatBraidDoesNotKnowIsRefused(t *testing.T) {
	decide := func(annotations map[string]string) (Decision, *PolicyResult) {
		pod := runningPod("pod", "10.0.0.1")
		pod.Annotations = annotations
		result := Compile(oneNode(pod))
		return result.Decisions[0], &result.Policies[0]
	}
	d, p := decide(map[string]string{"braid.dev/preferred-path": "blue", "example.com/other": "x"})
	if len(d.RefusedHints) != 1 || d.RefusedHints[0].Annotation != "braid.dev/preferred-path" || d.RefusedHints[0].Reason != v1alpha1.ReasonHintUnknown ||
		!strings.Contains(d.RefusedHints[0].Message, v1alpha1.AnnotationPreferredPaths) {
		t.Errorf("refused are %+v", d.RefusedHints)
	}
	if len(d.Hints) != 1 || d.Hints[0].Followed || p.HintedPods != 1 || len(p.RefusedHints) != 1 {
		t.Errorf("told are %+v, and of the policy %+v", d.Hints, p)
	}
	many := map[string]string{v1alpha1.AnnotationPreferredPaths: "blue"}
	for i := range 100 {
		many[fmt.Sprintf("braid.dev/key%02d", i)] = strings.Repeat("x", 1000)
	}
	d, _ = decide(many)
	if len(d.RefusedHints) != 1 || !strings.HasPrefix(d.RefusedHints[0].Message, "likewise braid.dev/key01, braid.dev/key02: ") || len(d.Hints) != 4 || !d.Hints[0].Followed {
		t.Errorf("of many are refused %+v, and told %+v", d.RefusedHints, d.Hints)
	}
	if got := OwnAnnotations(many); len(got) != 4 || len(got["braid.dev/key00"]) > maxQuoted {
		t.Errorf("%d annotations are kept", len(got))
	}
}

func FuzzParsePathList(f *testing.F) {
	for _, seed := range []string{"blue", "blue,green", " blue , green ", "", ",", "a.b-c,a", "Blue", "\xff", strings.Repeat("a,", 9)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		names, err := ParsePathList(value)
		if err != nil {
			if len(names) > 0 || !utf8.ValidString(err.Error()) || len(err.Error()) > 512 {
				t.Fatalf("%q: %d names and the error %q", value, len(names), err)
			}
			return
		}
		if len(names) == 0 || len(names) > v1alpha1.MaxPaths {
			t.Fatalf("%q: %d names", value, len(names))
		}
		again, err := ParsePathList(join(names, ","))
		if err != nil || !slices.Equal(again, names) {
			t.Fatalf("%q is %v, and that is %v, %v", value, names, again, err)
		}
	})
}

func FuzzParseMaxRate(f *testing.F) {
	for _, seed := range []string{"200M", "1.5G", "1Gi", "8k", "", "-1", "1e9", "1E", "1e-9", "99999999999999999999"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		rate, err := ParseMaxRate(value)
		if err == nil && (rate < minRate || rate > maxRate) || err != nil && rate != 0 {
			t.Fatalf("%q: %d, %v", value, rate, err)
		}
	})
}

// FuzzHints compiles a pod with any annotations: whatever they are, the plan
// keeps its schema and everything that is not followed is told.
func FuzzHints(f *testing.F) {
	f.Add("blue", "", "200M")
	f.Add("purple,blue", "blue", "5G")
	f.Add("\x00", strings.Repeat("é", 300), "fast")
	f.Fuzz(func(t *testing.T, preferred, backup, rate string) {
		pod := runningPod("pod", "10.0.0.1")
		pod.Annotations = map[string]string{
			v1alpha1.AnnotationPreferredPaths: preferred, v1alpha1.AnnotationBackupPaths: backup, v1alpha1.AnnotationMaxRate: rate,
		}
		in := guarded(&v1alpha1.Guardrails{Paths: []v1alpha1.PathName{"blue", "green"}, MaxPodRate: new(resource.MustParse("1G"))}, pod)
		result := Compile(in)
		e := result.Plans["node"].Endpoints[0]
		told := map[string]bool{}
		for _, annotation := range e.Hinted {
			told[annotation] = true
		}
		for _, refused := range e.RefusedHints {
			told[refused.Annotation] = true
			if refused.Message == "" || len(refused.Message) > maxRefusal || !utf8.ValidString(refused.Message) {
				t.Fatalf("the message %q", refused.Message)
			}
		}
		if len(told) != 3 || len(e.RefusedHints) > 8 {
			t.Fatalf("hinted %q, refused %+v", e.Hinted, e.RefusedHints)
		}
		if e.Guard == nil || e.Guard.MaxRate < minRate || e.Guard.MaxRate > 1_000_000_000 {
			t.Fatalf("the guard is %+v", e.Guard)
		}
	})
}

// guarded is oneNode with the paths blue, green and red, and these guardrails.
func guarded(rails *v1alpha1.Guardrails, pods ...corev1.Pod) Input {
	in := oneNode(pods...)
	for _, name := range []string{"green", "red"} {
		in.Paths = append(in.Paths, v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	in.Namespaces[0].Labels = map[string]string{"tenant": "yes"}
	p := v1alpha1.MPTCPGuardrail{ObjectMeta: metav1.ObjectMeta{Name: "tenants"}, Spec: v1alpha1.MPTCPGuardrailSpec{Guardrails: *rails}}
	p.Spec.NamespaceSelector.MatchLabels = map[string]string{"tenant": "yes"}
	in.Guardrails = []v1alpha1.MPTCPGuardrail{p}
	return in
}

// checkWishes says what is wrong with what an endpoint prefers.
func checkWishes(e *v1alpha1.PlanEndpoint) error {
	used := func(name v1alpha1.PathName) bool {
		return slices.ContainsFunc(e.Paths, func(w v1alpha1.PathWeight) bool { return w.Path == name })
	}
	for _, name := range slices.Concat(e.Preferred, e.Backup) {
		if !used(name) {
			return fmt.Errorf("%s is preferred or a backup, and is none of %v", name, e.Paths)
		}
	}
	switch {
	case !slices.IsSorted(e.Preferred) || !slices.IsSorted(e.Backup):
		return fmt.Errorf("preferred %v and backup %v are not sorted", e.Preferred, e.Backup)
	case len(intersect(e.Preferred, e.Backup)) > 0:
		return fmt.Errorf("preferred %v and backup %v overlap", e.Preferred, e.Backup)
	case len(e.Backup) > 0 && len(e.Backup) == len(e.Paths):
		return fmt.Errorf("every path is a backup: %v", e.Backup)
	case (len(e.Preferred) > 0) != (e.Preference != nil):
		return fmt.Errorf("preferred %v with the preference %+v", e.Preferred, e.Preference)
	}
	return nil
}

func TestWhatIsPreferredIsAmongThePathsAndNoBackup(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, plan := range Compile(drawInput(t)).Plans {
			for i := range plan.Endpoints {
				if err := checkWishes(&plan.Endpoints[i]); err != nil {
					t.Fatalf("endpoint %s: %v", plan.Endpoints[i].Name, err)
				}
			}
		}
	})
}

func TestEveryAnnotationIsFollowedOrRefusedOrBoth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		pods := map[types.UID]*corev1.Pod{}
		for i := range in.Pods {
			pods[in.Pods[i].UID] = &in.Pods[i]
		}
		for _, d := range Compile(in).Decisions {
			if d.Winner == nil {
				continue
			}
			told := map[string]bool{}
			for _, refused := range d.RefusedHints {
				told[refused.Annotation] = true
			}
			for _, h := range d.Hints {
				told[h.Annotation] = told[h.Annotation] || h.Followed
				if h.Reason == "" {
					t.Fatalf("%s: no reason for %s", d.Pod, h.Annotation)
				}
			}
			for key := range pods[d.Pod.UID].Annotations {
				if !told[key] {
					t.Fatalf("%s: nothing is said of %s", d.Pod, key)
				}
			}
		}
	})
}

func TestAHintThatIsTakenAwayLeavesNoTrace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		for i := range in.Pods {
			in.Pods[i].Annotations = nil
		}
		before := Compile(in)
		hinted := in.deepCopy()
		for i := range hinted.Pods {
			hinted.Pods[i].Annotations = drawAnnotations(t)
		}
		after := Compile(hinted)
		for node, plan := range after.Plans {
			for i := range plan.Endpoints {
				checkOnlyWishesDiffer(t, before.Plans[node].Endpoints[i], plan.Endpoints[i])
			}
		}
		if diff := cmp.Diff(before, Compile(in)); diff != "" {
			t.Fatalf("without the hints it is not as before:\n%s", diff)
		}
	})
}

// checkOnlyWishesDiffer fails when a hint changes more than what hints are for:
// neither the placement nor the number of subflows.
func checkOnlyWishesDiffer(t *rapid.T, before, after v1alpha1.PlanEndpoint) {
	for _, e := range []*v1alpha1.PlanEndpoint{&before, &after} {
		e.Preferred, e.Backup, e.Preference, e.Hinted, e.RefusedHints = nil, nil, nil, nil, nil
		e.Guard, e.Chain = nil, ""
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Fatalf("a hint changed the endpoint %s:\n%s", after.Name, diff)
	}
}

func TestAPreferenceHasEveryDefault(t *testing.T) {
	defaults := v1alpha1.PlanPreference{
		Weight: 100, MaxRTTPercent: 200, MinRTTDifferenceMicros: 5000, MaxLossPercent: 10, LeaveAfterMillis: 100, ReturnAfterMillis: 500,
	}
	with := func(change func(*v1alpha1.PlanPreference)) v1alpha1.PlanPreference {
		p := defaults
		change(&p)
		return p
	}
	for _, tc := range []struct {
		name  string
		given *v1alpha1.Preference
		want  v1alpha1.PlanPreference
	}{
		{"none is given", nil, defaults},
		{"an empty one is given", &v1alpha1.Preference{}, defaults},
		{"a weight", &v1alpha1.Preference{Weight: new(int32(30))}, with(func(p *v1alpha1.PlanPreference) { p.Weight = 30 })},
		{"a round-trip time", &v1alpha1.Preference{MaxRTTPercent: new(int32(150))}, with(func(p *v1alpha1.PlanPreference) { p.MaxRTTPercent = 150 })},
		{"no difference", &v1alpha1.Preference{MinRTTDifference: &metav1.Duration{}}, with(func(p *v1alpha1.PlanPreference) { p.MinRTTDifferenceMicros = 0 })},
		{"times", &v1alpha1.Preference{LeaveAfter: &metav1.Duration{Duration: time.Second}, ReturnAfter: &metav1.Duration{Duration: time.Minute}},
			with(func(p *v1alpha1.PlanPreference) { p.LeaveAfterMillis, p.ReturnAfterMillis = 1000, 60_000 })},
		{"times beyond what a plan can hold", &v1alpha1.Preference{LeaveAfter: &metav1.Duration{Duration: 1 << 62}, ReturnAfter: &metav1.Duration{Duration: -1}},
			with(func(p *v1alpha1.PlanPreference) { p.LeaveAfterMillis, p.ReturnAfterMillis = 1<<31-1, 0 })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, *planPreference(tc.given)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRefusedHintsDoNotFillAPlan(t *testing.T) {
	var pods []corev1.Pod
	for i := range 1000 {
		pod := runningPod(fmt.Sprintf("pod-%04d", i), "10.0.0.1")
		pod.Annotations = map[string]string{}
		for _, key := range HintAnnotations() {
			pod.Annotations[key] = strings.Repeat("é", 100)
		}
		pods = append(pods, pod)
	}
	result := Compile(oneNode(pods...))
	size, refused := 0, 0
	for _, e := range result.Plans["node"].Endpoints {
		for _, hint := range e.RefusedHints {
			size += len(hint.Message)
			refused++
		}
	}
	if size > maxRefusalBytes || refused == 0 {
		t.Errorf("%d refused hints take %d bytes", refused, size)
	}
	if got := len(result.Policies[0].RefusedHints); got != 3000 {
		t.Errorf("the policy tells of %d refused hints, want 3000", got)
	}
}
