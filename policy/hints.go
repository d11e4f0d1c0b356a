// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
)

// hintAnnotations are the annotations of pods that count, in the order in which
// they are looked at.
var hintAnnotations = []struct {
	key  string
	hint v1alpha1.Hint
}{
	{v1alpha1.AnnotationPreferredPaths, v1alpha1.HintPreferredPaths},
	{v1alpha1.AnnotationBackupPaths, v1alpha1.HintBackupPaths},
	{v1alpha1.AnnotationMaxRate, v1alpha1.HintMaxRate},
}

// HintAnnotations lists the keys of the annotations that count.
func HintAnnotations() []string {
	keys := make([]string, 0, len(hintAnnotations))
	for _, a := range hintAnnotations {
		keys = append(keys, a.key)
	}
	return keys
}

func annotationsOf(hints []v1alpha1.Hint) []string {
	var keys []string
	for _, a := range hintAnnotations {
		if slices.Contains(hints, a.hint) {
			keys = append(keys, a.key)
		}
	}
	return keys
}

// hasHints leaves out what is no wish, but says what the pod is.
func hasHints(w *workload) bool {
	own := OwnAnnotations(w.annotations)
	delete(own, v1alpha1.AnnotationVirtualMachine)
	return len(own) > 0 || w.machine.malformed != ""
}

const (
	// AnnotationPrefix is that of all keys of Braid's.
	AnnotationPrefix = "braid.dev/"
	// maxMisspelt is how many keys that Braid does not know are told of a pod.
	maxMisspelt = 3
)

// OwnAnnotations are those of a pod that count, and the first by name that look as if they
// should; nil when there are none.
func OwnAnnotations(all map[string]string) map[string]string {
	var found map[string]string
	misspelt := 0
	for _, key := range slices.Sorted(maps.Keys(all)) {
		value, known := all[key], isKnown(key)
		if !known && (!strings.HasPrefix(key, AnnotationPrefix) || misspelt == maxMisspelt) {
			continue
		}
		if !known {
			misspelt++
			value = shorten(value, maxQuoted)
		}
		if found == nil {
			found = map[string]string{}
		}
		found[key] = value
	}
	return found
}

func isKnown(key string) bool {
	return key == v1alpha1.AnnotationVirtualMachine || slices.Contains(HintAnnotations(), key)
}

// misspelt are the keys among them that Braid does not know, sorted.
func misspelt(w *workload) (keys []string) {
	for _, key := range slices.Sorted(maps.Keys(OwnAnnotations(w.annotations))) {
		if !isKnown(key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// UnknownAnnotation says of a key that it has no effect.
func UnknownAnnotation() string {
	return "Braid has no such annotation; those that count are " + strings.Join(append(HintAnnotations(), v1alpha1.AnnotationVirtualMachine), ", ")
}

// pathNamePattern is that of v1alpha1.PathName.
var pathNamePattern = regexp.MustCompile(`^[a-z0-9]+((-+|[.])[a-z0-9]+)*$`)

const maxPathName = 63

// ParsePathList reads the value of an annotation that lists paths: names with
// commas between them and perhaps blanks around them. Names that come again are
// left out. The error says what is wrong, in words for the pod's owner.
func ParsePathList(value string) ([]v1alpha1.PathName, error) {
	if strings.TrimSpace(value) == "" {
		return nil, errors.New("it names no path")
	}
	// Longer values cannot be lists that are allowed.
	if len(value) > v1alpha1.MaxPaths*(maxPathName+8) {
		return nil, errors.New("it is too long")
	}
	var names []v1alpha1.PathName
	for part := range strings.SplitSeq(value, ",") {
		name := strings.TrimSpace(part)
		switch {
		case name == "":
			return nil, errors.New("there is nothing between two commas or beside one")
		case len(name) > maxPathName || !pathNamePattern.MatchString(name):
			return nil, fmt.Errorf("%s cannot be the name of a path", quote(name))
		case !slices.Contains(names, v1alpha1.PathName(name)):
			names = append(names, v1alpha1.PathName(name))
		}
	}
	if len(names) > v1alpha1.MaxPaths {
		return nil, fmt.Errorf("it names %d paths, and a pod can have %d", len(names), v1alpha1.MaxPaths)
	}
	return names, nil
}

// maxRateText is how long the text of a rate can be.
const maxRateText = 20

// ParseMaxRate reads the value of braid.dev/max-rate in bits a second. The error
// says what is wrong, in words for the pod's owner.
func ParseMaxRate(value string) (int64, error) {
	if len(value) > maxRateText {
		return 0, errors.New("it is too long")
	}
	rate, err := resource.ParseQuantity(value)
	if err != nil {
		return 0, errors.New("it cannot be read as a quantity")
	}
	if rate.CmpInt64(minRate) < 0 || rate.CmpInt64(maxRate) > 0 {
		return 0, errors.New("it is not between 8k and 10T")
	}
	return rate.Value(), nil
}

// maxQuoted is how much of an annotation's value messages repeat, in bytes.
const maxQuoted = 60

func quote(value string) string { return fmt.Sprintf("%q", shorten(value, maxQuoted)) }

// HintChoice says what became of one annotation of a pod.
type HintChoice struct {
	Annotation string `json:"annotation"`
	Value      string `json:"value"`
	// Followed is true when the annotation has an effect, perhaps in part.
	Followed bool   `json:"followed"`
	Reason   string `json:"reason"`
}

// podHints are what the annotations of one pod come to, and what is looked at on
// the way there.
type podHints struct {
	winner *compiledPolicy
	rails  *guardrails
	d      *Decision
	used   []v1alpha1.PathName
	// reserve are paths that share a bottleneck with one of these.
	reserve []v1alpha1.PathName
	given   map[string]string

	preferred, backup []v1alpha1.PathName
	maxRate           int64
	followed          []string
	refused           []v1alpha1.RefusedHint
}

// readHints reads a pod's annotations, with what its policy says in their place.
func readHints(w *workload, winner *compiledPolicy, g *guardrails, d *Decision) *podHints {
	h := &podHints{winner: winner, rails: g, d: d, given: w.annotations}
	h.used, h.reserve = d.chosen()
	h.preferred, d.PreferredFrom = h.paths(v1alpha1.HintPreferredPaths, v1alpha1.AnnotationPreferredPaths, winner.spec.Paths.Preferred, "spec.paths.preferred")
	h.backup, d.BackupFrom = h.paths(v1alpha1.HintBackupPaths, v1alpha1.AnnotationBackupPaths, winner.spec.Paths.Backup, "spec.paths.backup")
	h.separate()
	h.leaveOne()
	h.rate()
	h.spelling(misspelt(w))
	h.readMachine(w)
	h.tell(w)
	return h
}

// paths are those that an annotation lists, or else those of the policy, and
// where they come from.
func (h *podHints) paths(hint v1alpha1.Hint, annotation string, policy []v1alpha1.PathName, field string) (paths []v1alpha1.PathName, from string) {
	if value, given := h.given[annotation]; given && !h.silenced(hint, annotation) {
		if paths = h.listed(annotation, value); len(paths) > 0 {
			h.followed = append(h.followed, annotation)
			return paths, annotation
		}
	}
	for _, name := range sorted(policy) {
		if slices.Contains(h.used, name) {
			paths = append(paths, name)
		}
	}
	if len(paths) > 0 {
		from = field
	}
	return paths, from
}

// silenced refuses an annotation that guardrails do not let count.
func (h *podHints) silenced(hint v1alpha1.Hint, annotation string) bool {
	p := h.rails.silence(hint)
	if p == nil {
		return false
	}
	counting := "none does"
	if allowed := annotationsOf(*p.guardrails.Hints); len(allowed) > 0 {
		counting = "those that count are " + enumerate(allowed)
	}
	h.refuse(annotation, v1alpha1.ReasonHintNotAllowed, "%s do not let this annotation count; %s", guardrailsString(p), counting)
	return true
}

func (h *podHints) refuse(annotation, reason, format string, args ...any) {
	h.refused = append(h.refused, v1alpha1.RefusedHint{
		Annotation: annotation, Reason: reason, Message: shorten(fmt.Sprintf(format, args...), maxRefusal),
	})
}

// maxRefusal is the schema's limit to the message of a refused hint.
const maxRefusal = 512

// listed are the paths of an annotation that the pod can use. What it cannot use
// is refused.
func (h *podHints) listed(annotation, value string) []v1alpha1.PathName {
	names, err := ParsePathList(value)
	switch {
	case err != nil:
		h.refuse(annotation, v1alpha1.ReasonHintMalformed, "%s is no list of paths: %v. Give names of paths with commas between them; %s", quote(value), err, h.may())
		return nil
	case len(h.used) == 0:
		h.refuse(annotation, v1alpha1.ReasonHintNotAllowed, "the pod's subflows are not spread over paths: %s", h.d.PathsReason)
		return nil
	}
	problems := map[PathProblem][]string{}
	var usable []v1alpha1.PathName
	for _, name := range sorted(names) {
		switch choice := h.choice(name); {
		case choice == nil:
			problems[pathUnknown] = append(problems[pathUnknown], fmt.Sprintf("no MPTCPPath is named %s", name))
		case choice.canBe(annotation):
			usable = append(usable, name)
		default:
			problems[choice.Problem] = append(problems[choice.Problem], fmt.Sprintf("%s: %s", name, choice.Reason))
		}
	}
	forbidden := slices.Concat(problems[pathForbidden], problems[pathNotAllowed])
	if len(forbidden) > 0 && !h.rails.trim() {
		usable = nil
	}
	h.refusePaths(annotation, v1alpha1.ReasonHintPathNotFound, slices.Concat(problems[pathUnknown], problems[pathElsewhere]), usable)
	h.refusePaths(annotation, v1alpha1.ReasonHintPathNotAllowed, slices.Concat(forbidden, problems[pathSharing]), usable)
	return usable
}

// canBe says whether the annotation can name the path: as a backup also one that is a backup by
// its bottleneck group anyway.
func (c *PathChoice) canBe(annotation string) bool {
	return c.Used && (c.Problem == pathUsed || c.Problem == pathSharing && annotation == v1alpha1.AnnotationBackupPaths)
}

func (h *podHints) choice(name v1alpha1.PathName) *PathChoice {
	for i := range h.d.Paths {
		if h.d.Paths[i].Path == name {
			return &h.d.Paths[i]
		}
	}
	return nil
}

func (h *podHints) refusePaths(annotation, reason string, problems []string, usable []v1alpha1.PathName) {
	if len(problems) == 0 {
		return
	}
	consequence := "the annotation is not followed"
	if len(usable) > 0 {
		consequence = "the annotation is followed for " + enumerate(usable)
	}
	h.refuse(annotation, reason, "%s; %s; %s", enumerate(problems), consequence, h.may())
}

// may says what is allowed.
func (h *podHints) may() string {
	if len(h.used) == 0 {
		return "the pod's subflows are not spread over paths"
	}
	return "the pod may use " + enumerate(h.used)
}

// separate takes a path that is both preferred and a backup from the list that
// counts less: that of the policy, or else the backups.
func (h *podHints) separate() {
	both := intersect(h.preferred, h.backup)
	switch hinted := h.d.BackupFrom == v1alpha1.AnnotationBackupPaths; {
	case len(both) == 0:
	case hinted && h.d.PreferredFrom != v1alpha1.AnnotationPreferredPaths:
		h.preferred = without(h.preferred, both)
	default:
		h.backup = without(h.backup, both)
		if hinted {
			h.refuse(v1alpha1.AnnotationBackupPaths, v1alpha1.ReasonHintMalformed, "%s is preferred too, and a path cannot be both: it is no backup", enumerate(both))
		}
	}
}

// leaveOne gives up backups where the pod would have no other path.
func (h *podHints) leaveOne() {
	if len(h.backup) == 0 || len(intersect(h.backup, h.used)) < len(h.used) {
		return
	}
	h.backup = nil
	if h.d.BackupFrom == v1alpha1.AnnotationBackupPaths {
		h.refuse(v1alpha1.AnnotationBackupPaths, v1alpha1.ReasonHintMalformed, "every path that the pod may use would be a backup: leave one of %s out", enumerate(h.used))
	}
}

// spelling refuses what Braid does not know. It is one refusal for all keys, because a plan
// has room for few.
func (h *podHints) spelling(keys []string) {
	if len(keys) == 0 {
		return
	}
	message := UnknownAnnotation()
	if len(keys) > 1 {
		message = "likewise " + enumerate(keys[1:]) + ": " + message
	}
	h.refuse(keys[0], v1alpha1.ReasonHintUnknown, "%s", message)
}

// rate reads braid.dev/max-rate.
func (h *podHints) rate() {
	const annotation = v1alpha1.AnnotationMaxRate
	value, given := h.given[annotation]
	if !given || h.silenced(v1alpha1.HintMaxRate, annotation) {
		return
	}
	rate, err := ParseMaxRate(value)
	if err != nil {
		h.refuse(annotation, v1alpha1.ReasonHintMalformed, "%s is no rate: %v. Give bits a second, such as 200M; %s", quote(value), err, h.mayRate())
		return
	}
	if limit, by := h.rails.maxPodRate(); by != nil && rate > limit {
		h.refuse(annotation, v1alpha1.ReasonHintRateTooHigh, "it asks for %s; %s allow a pod %s, and the pod is held to that",
			value, guardrailsString(by), by.guardrails.MaxPodRate)
		return
	}
	h.maxRate = rate
	h.followed = append(h.followed, annotation)
}

func (h *podHints) mayRate() string {
	if _, by := h.rails.maxPodRate(); by != nil {
		return fmt.Sprintf("%s allow 8k to %s", guardrailsString(by), by.guardrails.MaxPodRate)
	}
	return "8k to 10T is allowed"
}

// tell puts what was found into the decision.
func (h *podHints) tell(w *workload) {
	if len(h.preferred) == 0 {
		h.d.PreferredFrom = ""
	}
	if len(h.backup) == 0 {
		h.d.BackupFrom = ""
	}
	h.followed = slices.DeleteFunc(h.followed, func(annotation string) bool {
		return annotation == v1alpha1.AnnotationPreferredPaths && h.d.PreferredFrom != annotation ||
			annotation == v1alpha1.AnnotationBackupPaths && h.d.BackupFrom != annotation
	})
	h.addReserve()
	h.d.Preferred, h.d.Backup = h.preferred, h.backup
	if len(h.preferred) > 0 {
		h.d.Preference = planPreference(h.winner.spec.Paths.Preference)
	}
	h.d.Guard = h.rails.guard(h.maxRate)
	h.d.RefusedHints = h.refused
	for _, key := range HintAnnotations() {
		if value, given := w.annotations[key]; given {
			h.d.Hints = append(h.d.Hints, h.outcome(key, shorten(value, maxQuoted)))
		}
	}
	for _, key := range misspelt(w) {
		h.d.Hints = append(h.d.Hints, HintChoice{Annotation: key, Value: shorten(w.annotations[key], maxQuoted), Reason: UnknownAnnotation()})
	}
}

// addReserve makes backups of paths that share a bottleneck with one that is used.
func (h *podHints) addReserve() {
	if len(h.reserve) == 0 {
		return
	}
	h.backup = sorted(slices.Concat(without(h.backup, h.reserve), h.reserve))
	if h.d.BackupFrom != "" {
		h.d.BackupFrom += " and "
	}
	h.d.BackupFrom += "spec.bottleneckGroup of paths"
}

func (h *podHints) outcome(annotation, value string) HintChoice {
	choice := HintChoice{Annotation: annotation, Value: value, Followed: slices.Contains(h.followed, annotation)}
	var reasons []string
	for _, refused := range h.refused {
		if refused.Annotation == annotation {
			reasons = append(reasons, refused.Message)
		}
	}
	choice.Reason = join(reasons, "; ")
	if choice.Followed && choice.Reason == "" {
		choice.Reason = "nothing stands against it"
	}
	return choice
}

// withoutPolicy says of the annotations of a pod that no policy selects that they
// have no effect.
func withoutPolicy(w *workload, d *Decision) {
	for _, key := range append(HintAnnotations(), misspelt(w)...) {
		if value, given := w.annotations[key]; given {
			d.Hints = append(d.Hints, HintChoice{Annotation: key, Value: shorten(value, maxQuoted), Reason: "no policy selects the pod"})
		}
	}
}

func intersect(a, b []v1alpha1.PathName) []v1alpha1.PathName {
	return slices.DeleteFunc(slices.Clone(a), func(name v1alpha1.PathName) bool { return !slices.Contains(b, name) })
}

func without(a, b []v1alpha1.PathName) []v1alpha1.PathName {
	return slices.DeleteFunc(slices.Clone(a), func(name v1alpha1.PathName) bool { return slices.Contains(b, name) })
}

// planPreference is a preference with every default filled in.
func planPreference(p *v1alpha1.Preference) *v1alpha1.PlanPreference {
	plan := &v1alpha1.PlanPreference{
		Weight:                 v1alpha1.DefaultPreferenceWeight,
		MaxRTTPercent:          v1alpha1.DefaultMaxRTTPercent,
		MinRTTDifferenceMicros: v1alpha1.DefaultMinRTTDifferenceMicros,
		MaxLossPercent:         v1alpha1.DefaultMaxLossPercent,
		LeaveAfterMillis:       v1alpha1.DefaultLeaveAfterMillis,
		ReturnAfterMillis:      v1alpha1.DefaultReturnAfterMillis,
	}
	if p == nil {
		return plan
	}
	if p.Weight != nil {
		plan.Weight = *p.Weight
	}
	if p.MaxRTTPercent != nil {
		plan.MaxRTTPercent = *p.MaxRTTPercent
	}
	if p.MinRTTDifference != nil {
		plan.MinRTTDifferenceMicros = inUnits(p.MinRTTDifference, time.Microsecond)
	}
	if p.MaxLossPercent != nil {
		plan.MaxLossPercent = *p.MaxLossPercent
	}
	if p.LeaveAfter != nil {
		plan.LeaveAfterMillis = inUnits(p.LeaveAfter, time.Millisecond)
	}
	if p.ReturnAfter != nil {
		plan.ReturnAfterMillis = inUnits(p.ReturnAfter, time.Millisecond)
	}
	return plan
}

// inUnits is a duration as a number of units, within what a plan can hold.
func inUnits(d *metav1.Duration, unit time.Duration) int32 {
	return int32(min(max(d.Duration/unit, 0), math.MaxInt32))
}
