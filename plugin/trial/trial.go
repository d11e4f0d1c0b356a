// SPDX-License-Identifier: Apache-2.0

// Package trial judges what the self-test of `kubectl braid test` measured. It is pure:
// readings in, a verdict out.
package trial

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/plugin/planes"
)

// Phase is what was measured while one connection sent.
type Phase struct {
	// Transfer is the connection's own account.
	Transfer agentapi.Transfer `json:"transfer"`
	// BitsPerSecond is its goodput.
	BitsPerSecond uint64 `json:"bitsPerSecond"`
	// Paths are what the sending node's NICs sent, by path.
	Paths map[string]uint64 `json:"paths"`
}

// Trial is what was measured between two nodes.
type Trial struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Paths that both nodes can use, and those that one of them cannot, with the reason.
	Paths    []string          `json:"paths"`
	Unusable map[string]string `json:"unusable,omitempty"`
	// Before is what the NICs sent before the test did, by path: others' traffic.
	Before map[string]uint64 `json:"before,omitempty"`
	// Plain is by TCP, Spread by MPTCP.
	Plain  *Phase `json:"plain,omitempty"`
	Spread *Phase `json:"spread,omitempty"`
	// Subflows are the paths of the connection's subflows, as the sender's node sees them.
	Subflows []string `json:"subflows,omitempty"`
	// Taken is the path that was taken from the pods while a connection sent; Without and
	// Again are what the NICs sent meanwhile and after, and Failover is the connection's
	// account of all that.
	Taken    string             `json:"taken,omitempty"`
	Without  map[string]uint64  `json:"without,omitempty"`
	Again    map[string]uint64  `json:"again,omitempty"`
	Failover *agentapi.Transfer `json:"failover,omitempty"`
	// Fault is what kept the test from going on; empty where nothing did.
	Fault string `json:"fault,omitempty"`
	// FaultRemedy says what to do about it.
	FaultRemedy string `json:"faultRemedy,omitempty"`
	// SpreadRemedy says what to do where traffic is not spread, as the node's agent sees it.
	SpreadRemedy string `json:"spreadRemedy,omitempty"`
}

// Rate is what NICs carried between two surveys, in bits a second by NIC.
func Rate(before, after *agentapi.Survey) map[string]uint64 {
	seconds := after.Time.Sub(before.Time).Seconds()
	rates := map[string]uint64{}
	for _, nic := range before.NICs {
		at := slices.IndexFunc(after.NICs, func(other agentapi.NIC) bool { return other.Name == nic.Name })
		if at >= 0 && seconds > 0 && after.NICs[at].SentBytes >= nic.SentBytes {
			rates[nic.Name] = uint64(float64(8*(after.NICs[at].SentBytes-nic.SentBytes)) / seconds)
		}
	}
	return rates
}

// carries: a NIC that has less than this share of what would be fair carries nothing to
// speak of: other traffic, acknowledgements, a few packets of a subflow that is about to go.
const carries = 0.2

// idle are those of the paths that carry nothing to speak of.
func idle(paths []string, rates map[string]uint64) (names []string) {
	total := uint64(0)
	for _, path := range paths {
		total += rates[path]
	}
	for _, path := range paths {
		if float64(rates[path]) < carries*float64(total)/float64(len(paths)) || total == 0 {
			names = append(names, path)
		}
	}
	return names
}

// unused are the paths that the connection did not use. Where others fill a NIC, its counters
// do not tell, but the subflows that the agent saw do.
func (t *Trial) unused() []string {
	names := idle(t.Paths, t.Spread.Paths)
	if len(t.Subflows) == 0 {
		return names
	}
	for _, path := range t.Paths {
		if !slices.Contains(names, path) && t.others(path) && !slices.Contains(t.Subflows, path) {
			names = append(names, path)
		}
	}
	return names
}

// others: the NIC carried more than nothing to speak of before the test.
func (t *Trial) others(path string) bool {
	total := uint64(0)
	for _, path := range t.Paths {
		total += t.Spread.Paths[path]
	}
	return float64(t.Before[path]) >= carries*float64(total)/float64(len(t.Paths))
}

// left: the path that was taken carried nothing to speak of, or no more than others sent
// before, with a fifth for what that varies.
func (t *Trial) left() bool {
	return slices.Contains(idle(t.Paths, t.Without), t.Taken) || float64(t.Without[t.Taken]) <= 1.2*float64(t.Before[t.Taken])
}

// Judge says what the trial showed, in the order in which things must work.
func (t *Trial) Judge() (findings []planes.Finding) {
	for _, check := range []func() planes.Finding{t.paths, t.connects, t.speaks, t.spreads, t.gains, t.survives, t.returns} {
		finding := check()
		if finding.Check != "" {
			findings = append(findings, finding)
		}
		if finding.Level == planes.Failed {
			break
		}
	}
	if t.Fault != "" {
		findings = append(findings, planes.Finding{Check: "test", Level: planes.Failed, Message: t.Fault, Remedy: t.FaultRemedy})
	}
	return findings
}

func (t *Trial) paths() planes.Finding {
	var lacking []string
	for path, reason := range t.Unusable {
		lacking = append(lacking, path+": "+reason)
	}
	slices.Sort(lacking)
	switch {
	case len(t.Paths)+len(lacking) == 0:
		return planes.Finding{}
	case len(t.Paths) < 2:
		return planes.Finding{Check: "paths", Level: planes.Failed, Message: fmt.Sprintf("%d that both nodes can use; %s", len(t.Paths), strings.Join(lacking, "; ")),
			Remedy: "kubectl braid paths shows the state of each NIC, kubectl braid init proposes paths"}
	case len(lacking) > 0:
		return planes.Finding{Check: "paths", Level: planes.Warning, Message: strings.Join(lacking, "; "), Remedy: "kubectl braid paths shows the state of each NIC"}
	}
	return planes.Finding{Check: "paths", Level: planes.OK, Message: strings.Join(t.Paths, ", ")}
}

func (t *Trial) connects() planes.Finding {
	switch {
	case t.Plain == nil:
		return planes.Finding{}
	case t.Plain.Transfer.Error != "":
		return planes.Finding{Check: "TCP", Level: planes.Failed, Message: t.Plain.Transfer.Error,
			Remedy: "see that the cluster network connects pods of these nodes, and that no NetworkPolicy of the cluster forbids it"}
	}
	return planes.Finding{Check: "TCP", Level: planes.OK, Message: Bits(t.Plain.BitsPerSecond)}
}

func (t *Trial) speaks() planes.Finding {
	switch {
	case t.Spread == nil:
		return planes.Finding{}
	case t.Spread.Transfer.Error != "":
		return planes.Finding{Check: "MPTCP", Level: planes.Failed, Message: t.Spread.Transfer.Error,
			Remedy: "plain TCP works: look at what drops TCP options between the pods, and at the events of the nodes' kernels"}
	case !t.Spread.Transfer.Multipath:
		return planes.Finding{Check: "MPTCP", Level: planes.Failed, Message: "the connection fell back to TCP",
			Remedy: "see that net.mptcp.enabled is 1 in pods, and that nothing between them (a proxy, a service mesh, a firewall) ends connections or removes TCP options"}
	}
	return planes.Finding{Check: "MPTCP", Level: planes.OK, Message: Bits(t.Spread.BitsPerSecond)}
}

func (t *Trial) spreads() planes.Finding {
	if t.Spread == nil {
		return planes.Finding{}
	}
	if unused := t.unused(); len(unused) > 0 {
		return planes.Finding{Check: "spread", Level: planes.Failed,
			Message: fmt.Sprintf("%s carried nothing of it to speak of; subflows are on: %s", strings.Join(unused, ", "), cmp.Or(strings.Join(t.Subflows, ", "), "no known path")),
			Remedy:  cmp.Or(t.SpreadRemedy, "kubectl braid top shows each subflow's path; docs/troubleshooting.md")}
	}
	return planes.Finding{Check: "spread", Level: planes.OK, Message: fmt.Sprintf("one connection on %d NICs", len(t.Paths))}
}

// A connection that is no faster than one NIC, or stands still for so long, is told.
const (
	gain       = 1.2
	standstill = 1000
)

// gains compares goodput: the NICs may share a load that is no larger for it.
func (t *Trial) gains() planes.Finding {
	if t.Spread == nil || t.Plain == nil {
		return planes.Finding{}
	}
	finding := planes.Finding{Check: "goodput", Level: planes.OK, Message: fmt.Sprintf("%s, %s by TCP", Bits(t.Spread.BitsPerSecond), Bits(t.Plain.BitsPerSecond))}
	switch stood := t.Spread.Transfer.LongestStandstillMilliseconds; {
	case stood > standstill:
		finding.Level = planes.Warning
		finding.Message += fmt.Sprintf("; it stood still for %d ms", stood)
		finding.Remedy = "try again when the nodes have less to do; receive buffers must hold what is under way on all paths: docs/requirements.md, docs/kernel-notes.md"
	case float64(t.Spread.BitsPerSecond) < gain*float64(t.Plain.BitsPerSecond):
		finding.Level = planes.Warning
		finding.Remedy = "one process may not fill more than one of these NICs: look at processors, and at receive buffers (docs/requirements.md); or the planes share a link somewhere (spec.bottleneckGroup)"
	}
	return finding
}

func (t *Trial) survives() planes.Finding {
	failed := planes.Finding{Check: "failover", Level: planes.Failed}
	switch {
	case t.Failover == nil || t.Without == nil:
		return planes.Finding{}
	case t.Failover.Error != "":
		failed.Message, failed.Remedy = "the connection broke: "+t.Failover.Error, "kubectl braid sysdump collects what a bug report needs"
	case !t.left():
		failed.Message = fmt.Sprintf("%s still carried %s when it was taken from the pods", t.Taken, Bits(t.Without[t.Taken]))
		failed.Remedy = "other traffic of these nodes does so too: try again when there is less; kubectl braid top shows each subflow's path"
	default:
		return planes.Finding{Check: "failover", Level: planes.OK, Message: fmt.Sprintf(
			"without %s the connection went on, no reset; it stood still for %d ms at most", t.Taken, t.Failover.LongestStandstillMilliseconds)}
	}
	return failed
}

func (t *Trial) returns() planes.Finding {
	switch {
	case t.Again == nil:
		return planes.Finding{}
	case slices.Contains(idle(t.Paths, t.Again), t.Taken):
		return planes.Finding{Check: "return", Level: planes.Failed, Message: t.Taken + " carried nothing to speak of when the pods had it again",
			Remedy: "kubectl braid top shows each subflow's path; docs/troubleshooting.md"}
	}
	return planes.Finding{Check: "return", Level: planes.OK, Message: t.Taken + " carries again"}
}

// Fine is true when nothing failed.
func Fine(findings []planes.Finding) bool {
	return !slices.ContainsFunc(findings, func(f planes.Finding) bool { return f.Level == planes.Failed })
}

// barWidth is that of the fullest NIC.
const barWidth = 20

// Rows are a line for each path: what its NIC carried in each phase, and a bar.
func (t *Trial) Rows() [][]string {
	header := []string{"NIC OF", "TCP", "MPTCP", ""}
	if t.Without != nil {
		header = append(header, "WITHOUT "+t.Taken)
	}
	if t.Again != nil {
		header = append(header, "WITH IT AGAIN")
	}
	rows := [][]string{header}
	for _, path := range t.Paths {
		row := []string{path, phaseRate(t.Plain, path), phaseRate(t.Spread, path), ""}
		if t.Spread != nil {
			row[3] = bar(t.Spread.Paths[path], t.Spread.Paths)
		}
		for _, rates := range []map[string]uint64{t.Without, t.Again} {
			if rates != nil {
				row = append(row, Bits(rates[path]))
			}
		}
		rows = append(rows, row)
	}
	return rows
}

func phaseRate(phase *Phase, path string) string {
	if phase == nil {
		return "-"
	}
	return Bits(phase.Paths[path])
}

func bar(rate uint64, all map[string]uint64) string {
	most := uint64(1)
	for _, other := range all {
		most = max(most, other)
	}
	return strings.Repeat("#", int((rate*barWidth+most/2)/most))
}

// Bits is a rate with three digits or so.
func Bits(bitsPerSecond uint64) string {
	scaled, units := float64(bitsPerSecond), []string{"bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"}
	for scaled >= 999.5 && len(units) > 1 {
		scaled, units = scaled/1000, units[1:]
	}
	if scaled < 99.95 && units[0] != "bit/s" {
		return fmt.Sprintf("%.1f %s", scaled, units[0])
	}
	return fmt.Sprintf("%.0f %s", scaled, units[0])
}
