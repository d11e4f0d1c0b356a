// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"braid.dev/braid/api/v1alpha1"
)

// Decision says what was decided for one pod, and why.
type Decision struct {
	Pod PodRef `json:"pod"`
	// Ignored says why no policy can apply to the pod; empty when one can.
	Ignored string `json:"ignored,omitempty"`
	// Winner is the policy that decides; nil when none selects the pod.
	Winner *v1alpha1.PolicyReference `json:"winner,omitempty"`
	// WinnerReason says why it decides.
	WinnerReason string `json:"winnerReason,omitempty"`
	// Losers are the other policies that select the pod, in order of precedence.
	Losers []Loser `json:"losers,omitempty"`
	// Paths lists every path that exists or that the winner names, by name.
	Paths []PathChoice `json:"paths,omitempty"`
	// PathsReason says why the pod uses no path; empty when it uses some.
	PathsReason string `json:"pathsReason,omitempty"`
	// Guardrails are those that hold for the pod, in order of precedence.
	Guardrails []GuardrailsChoice `json:"guardrails,omitempty"`
	// Hints says what became of the pod's annotations.
	Hints []HintChoice `json:"hints,omitempty"`
	// RefusedHints are annotations that are not followed, or in part.
	RefusedHints []v1alpha1.RefusedHint `json:"refusedHints,omitempty"`
	// Preferred are the paths to use while they are good, and PreferredFrom the
	// annotation or the field that they come from.
	Preferred     []v1alpha1.PathName `json:"preferred,omitempty"`
	PreferredFrom string              `json:"preferredFrom,omitempty"`
	// Preference is when they are given up.
	Preference *v1alpha1.PlanPreference `json:"preference,omitempty"`
	// Backup are the paths to use while no other can be, and BackupFrom the
	// annotation or the field that they come from.
	Backup     []v1alpha1.PathName `json:"backup,omitempty"`
	BackupFrom string              `json:"backupFrom,omitempty"`
	// Outside are the ranges of addresses outside of the cluster that the pod's connections are
	// spread to as well.
	Outside []v1alpha1.CIDR `json:"outside,omitempty"`
	// Guard is what guardrails and annotations limit.
	Guard *v1alpha1.PlanGuard `json:"guard,omitempty"`
	// GuardReason says why no rule of the pod's chain keeps the rate of Guard;
	// empty when one does. The limit at the uplinks holds all the same.
	GuardReason string `json:"guardReason,omitempty"`
	// Subflows of the pod's connections.
	Subflows v1alpha1.PlanSubflows `json:"subflows,omitzero"`
	// SubflowsReason says where their number comes from.
	SubflowsReason string `json:"subflowsReason,omitempty"`
	// Transport are the settings that the pod's sockets get, in words; empty for none.
	Transport string `json:"transport,omitempty"`
	// Incast is what the pod's sockets do with peers against incast; empty for nothing.
	Incast string `json:"incast,omitempty"`
	// Proxied is true where the node's proxy takes the plain TCP connections that the pod begins.
	Proxied bool `json:"proxied,omitempty"`
	// TransportBounded says what of the winner's settings guardrails do not allow.
	TransportBounded []string `json:"transportBounded,omitempty"`
	// VirtualMachine says by what a pod is known to hold a VM; empty where it holds none.
	VirtualMachine string `json:"virtualMachine,omitempty"`
	// NotApplied is what of the winner does not hold for a VM.
	NotApplied []v1alpha1.NotAppliedSetting `json:"notApplied,omitempty"`
	// Rules says whose rules run for the pod, in the order in which they do.
	Rules []RulesChoice `json:"rules,omitempty"`
	// Chain is the name of the pod's chain in its node's plan; empty when no rule
	// runs.
	Chain string `json:"chain,omitempty"`
	// LeftOut says why the pod is missing in its node's plan in spite of a
	// winner; empty when it is there.
	LeftOut string `json:"leftOut,omitempty"`
}

// Loser is a policy that selects a pod and does not decide for it.
type Loser struct {
	Policy v1alpha1.PolicyReference `json:"policy"`
	Reason string                   `json:"reason"`
}

// PathChoice says whether a pod uses a path, and why.
type PathChoice struct {
	Path v1alpha1.PathName `json:"path"`
	Used bool              `json:"used"`
	// Weight is the path's share of subflows, 0 when it is not used.
	Weight int32 `json:"weight,omitempty"`
	// Reason says where the weight comes from, or why the path is not used.
	Reason string `json:"reason"`
	// Problem is why the path is not used, or not while another one can be.
	Problem PathProblem `json:"-"`
	// NotNow is why the node cannot use the path at the moment. The compile does not know
	// NICs and leaves it empty: it is for who explains.
	NotNow string `json:"notNow,omitempty"`
	// Impaired is how the path does less than it should, likewise.
	Impaired string `json:"impaired,omitempty"`
}

// pathWeights lists the paths that the pod uses.
func (d *Decision) pathWeights() []v1alpha1.PathWeight {
	var weights []v1alpha1.PathWeight
	for _, c := range d.Paths {
		if c.Used {
			weights = append(weights, v1alpha1.PathWeight{Path: c.Path, Weight: c.Weight})
		}
	}
	return weights
}

// chosen lists the paths that hints may choose among, and reserve those that share a
// bottleneck with one of them.
func (d *Decision) chosen() (chosen, reserve []v1alpha1.PathName) {
	for _, c := range d.Paths {
		switch {
		case !c.Used:
		case c.Problem == pathSharing:
			reserve = append(reserve, c.Path)
		default:
			chosen = append(chosen, c.Path)
		}
	}
	return chosen, reserve
}

// String tells the decision in several lines of text, for people.
func (d Decision) String() string {
	var b strings.Builder
	if d.Pod.Kind == "" {
		b.WriteString("Pod ")
	}
	b.WriteString(d.Pod.String())
	if d.Pod.Node != "" {
		fmt.Fprintf(&b, " on node %s", d.Pod.Node)
	}
	b.WriteString("\n")
	switch {
	case d.Ignored != "":
		fmt.Fprintf(&b, "  ignored: %s\n", d.Ignored)
	case d.Winner == nil:
		b.WriteString("  not selected by any policy\n")
		d.writeHints(&b)
	default:
		d.writeDetails(&b)
	}
	return b.String()
}

func (d Decision) writeDetails(b *strings.Builder) {
	fmt.Fprintf(b, "  policy: %s (%s)\n", PolicyString(*d.Winner), d.WinnerReason)
	for _, l := range d.Losers {
		fmt.Fprintf(b, "  overridden: %s (%s)\n", PolicyString(l.Policy), l.Reason)
	}
	if d.LeftOut != "" {
		fmt.Fprintf(b, "  left out: %s\n", d.LeftOut)
		return
	}
	if d.PathsReason != "" {
		fmt.Fprintf(b, "  no path: %s\n", d.PathsReason)
	}
	for i := range d.Paths {
		c := &d.Paths[i]
		fmt.Fprintf(b, "  path %s: %s\n", c.Path, c.text())
	}
	d.writeWishes(b)
	d.writeSubflows(b)
	if d.Proxied {
		b.WriteString("  sockets: the plain TCP connections that it begins go through its node's proxy\n")
	}
	if d.Transport != "" {
		fmt.Fprintf(b, "  transport: %s\n", d.Transport)
	}
	if d.Incast != "" {
		fmt.Fprintf(b, "  incast: %s\n", d.Incast)
	}
	for _, bounded := range d.TransportBounded {
		fmt.Fprintf(b, "  transport: %s\n", bounded)
	}
	if d.VirtualMachine != "" {
		fmt.Fprintf(b, "  holds a VM: %s\n", d.VirtualMachine)
	}
	for _, s := range d.NotApplied {
		fmt.Fprintf(b, "  not for a VM: %s (%s)\n", s.Setting, s.Message)
	}
	for _, r := range d.Rules {
		fmt.Fprintf(b, "  rules of %s: %s (%s)\n", PolicyString(r.Policy), strings.Join(r.Rules, ", "), r.Reason)
	}
}

func (c *PathChoice) text() string {
	switch {
	case !c.Used:
		return fmt.Sprintf("not used (%s)", c.Reason)
	case c.NotNow != "":
		return fmt.Sprintf("weight %d (%s), but not now: %s", c.Weight, c.Reason, c.NotNow)
	case c.Impaired != "":
		return fmt.Sprintf("weight %d (%s), but %s", c.Weight, c.Reason, c.Impaired)
	}
	return fmt.Sprintf("weight %d (%s)", c.Weight, c.Reason)
}

// usable counts the paths that the pod is to use, and those of them that its node can use
// at the moment.
func (d *Decision) usable() (used, now int) {
	for _, c := range d.Paths {
		if c.Used {
			used++
		}
		if c.Used && c.NotNow == "" {
			now++
		}
	}
	return used, now
}

// writeWishes tells what guardrails and hints come to.
func (d Decision) writeWishes(b *strings.Builder) {
	for _, g := range d.Guardrails {
		fmt.Fprintf(b, "  guardrails of %s: %s\n", PolicyString(g.Policy), g.Effect)
	}
	d.writeHints(b)
	if len(d.Preferred) > 0 {
		fmt.Fprintf(b, "  preferred: %s (from %s), %s\n", enumerate(d.Preferred), d.PreferredFrom, preferenceString(d.Preference))
	}
	if len(d.Backup) > 0 {
		fmt.Fprintf(b, "  backup: %s (from %s)\n", enumerate(d.Backup), d.BackupFrom)
	}
	if len(d.Outside) > 0 {
		fmt.Fprintf(b, "  outside: %s (from spec.paths.outside)\n", enumerate(d.Outside))
	}
	if d.Guard != nil && d.Guard.MaxRate > 0 {
		fmt.Fprintf(b, "  rate: at most %s over all paths", resource.NewQuantity(d.Guard.MaxRate, resource.DecimalSI))
		if d.GuardReason != "" {
			fmt.Fprintf(b, " (at the uplinks alone: %s)", d.GuardReason)
		}
		b.WriteString("\n")
	}
}

func (d Decision) writeHints(b *strings.Builder) {
	for _, h := range d.Hints {
		state := "not followed"
		if h.Followed {
			state = "followed"
		}
		fmt.Fprintf(b, "  annotation %s %q: %s (%s)\n", h.Annotation, h.Value, state, h.Reason)
	}
}

// preferenceString tells when preferred paths are given up.
func preferenceString(p *v1alpha1.PlanPreference) string {
	text := fmt.Sprintf("given up for %d ms above %d%% of the best round-trip time and %g ms more, or above %d%% of loss; taken again after %d ms",
		p.LeaveAfterMillis, p.MaxRTTPercent, float64(p.MinRTTDifferenceMicros)/1000, p.MaxLossPercent, p.ReturnAfterMillis)
	if p.Weight < 100 {
		text = fmt.Sprintf("by %d%% of the subflows, ", p.Weight) + text
	}
	return text
}

func (d Decision) writeSubflows(b *strings.Builder) {
	s := d.Subflows
	fmt.Fprintf(b, "  subflows: %d (%s), opened by: %s", s.Count, d.SubflowsReason, s.Manager)
	if s.FirstAnnouncedPort != 0 && s.Count > 1 {
		fmt.Fprintf(b, ", announced ports from %d", s.FirstAnnouncedPort)
	}
	if s.Mode != "" {
		fmt.Fprintf(b, ", mode %s", s.Mode)
	}
	if s.Count > 1 {
		b.WriteString(opening(s))
	}
	if s.Reopen == v1alpha1.ReopenNever {
		b.WriteString(", not reopened")
	}
	if used, now := d.usable(); now < used {
		fmt.Fprintf(b, "; they share %d of %d paths now", now, used)
	}
	b.WriteString("\n")
}

// opening says when further subflows are opened.
func opening(s v1alpha1.PlanSubflows) string {
	var after []string
	if bytes := s.OpenAfterBytes + s.AnnounceAfterBytes; bytes > 0 {
		after = append(after, fmt.Sprintf("%d bytes", bytes))
	}
	if millis := s.OpenAfterMillis + s.AnnounceAfterMillis; millis > 0 {
		after = append(after, fmt.Sprintf("%d ms", millis))
	}
	if len(after) == 0 {
		return ", at once"
	}
	return ", after " + strings.Join(after, " or ")
}

// PolicyString is kind namespace/name, or kind name for a ClusterMPTCPPolicy.
func PolicyString(p v1alpha1.PolicyReference) string {
	if p.Namespace == "" {
		return p.Kind + " " + p.Name
	}
	return p.Kind + " " + p.Namespace + "/" + p.Name
}

// whyWon says why a policy decides, given the others that select the pod.
func whyWon(winner *compiledPolicy, losers []*compiledPolicy) string {
	if len(losers) == 0 {
		return "the only policy that selects the pod"
	}
	return fmt.Sprintf("first of %d policies that select the pod, %s", len(losers)+1, advantage(winner, losers[0]))
}

// advantage names the first thing that puts a policy before the next one.
func advantage(winner, next *compiledPolicy) string {
	switch {
	case winner.spec.Priority != next.spec.Priority:
		return fmt.Sprintf("by priority %d", winner.spec.Priority)
	case compareAge(winner.created, next.created) != 0:
		return "by age"
	case winner.result.Policy.Kind != next.result.Policy.Kind:
		return "by kind"
	}
	return "by name"
}

// whyLost says why a policy does not decide.
func whyLost(winner, loser *compiledPolicy) string {
	w, l := winner.result.Policy, loser.result.Policy
	switch {
	case winner.spec.Priority != loser.spec.Priority:
		return fmt.Sprintf("its priority %d is lower than %d", loser.spec.Priority, winner.spec.Priority)
	case compareAge(winner.created, loser.created) != 0 && loser.created.IsZero():
		return fmt.Sprintf("same priority %d, and it is not stored yet, so the other is older", loser.spec.Priority)
	case compareAge(winner.created, loser.created) != 0:
		return fmt.Sprintf("same priority %d, and it is younger: created %s, not %s", loser.spec.Priority, created(loser), created(winner))
	case w.Kind != l.Kind:
		return fmt.Sprintf("same priority %d and age, and a %s goes before an %s", loser.spec.Priority, w.Kind, l.Kind)
	}
	return fmt.Sprintf("same priority %d and age, and its name comes after %s", loser.spec.Priority, w.Name)
}

func created(r *compiledPolicy) string { return r.created.UTC().Format(time.RFC3339) }
