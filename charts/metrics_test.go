// SPDX-License-Identifier: Apache-2.0

package charts_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	controllermetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/yaml"

	"braid.dev/braid/agent/announcements"
	"braid.dev/braid/agent/asking"
	"braid.dev/braid/agent/atnic"
	"braid.dev/braid/agent/crowd"
	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/guard"
	"braid.dev/braid/agent/guests"
	"braid.dev/braid/agent/health"
	"braid.dev/braid/agent/metrics"
	"braid.dev/braid/agent/narrow"
	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/agent/relayed"
	"braid.dev/braid/agent/slow"
	"braid.dev/braid/agent/spreading"
	"braid.dev/braid/agent/transport"
	_ "braid.dev/braid/controllers" // registers the controller's metrics
)

// sources are the files that make metrics, all of which TestThePageOfMetrics… asks.
var sources = []string{"agent/announcements/metrics.go", "agent/asking/metrics.go", "agent/atnic/metrics.go", "agent/crowd/metrics.go", "agent/datapath/metrics.go", "agent/guard/metrics.go", "agent/guests/metrics.go", "agent/health/collector.go", "agent/metrics/collector.go", "agent/metrics/peers.go", "agent/metrics/rounds.go", "agent/narrow/metrics.go", "agent/pathmanager/metrics.go", "agent/relayed/metrics.go", "agent/slow/metrics.go", "agent/spreading/metrics.go", "agent/transport/metrics.go", "controllers/metrics.go"}

var (
	description = regexp.MustCompile(`fqName: "(braid_\w+)".*variableLabels: \{([^}]*)\}`)
	documented  = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([^|]*)\\|")
	quoted      = regexp.MustCompile("`([^`]*)`")
	used        = regexp.MustCompile(`\b(braid|controller_runtime|workqueue|leader_election|process)_\w+`)
)

// describedMetrics are those of the code: labels by name.
func describedMetrics() map[string]string {
	registry := controllermetrics.Registry.(prometheus.Collector)
	collectors := []prometheus.Collector{
		metrics.NewCollector(nil, logr.Discard()), health.NewCollector(nil, nil), (*datapath.Datapath)(nil), (*guard.Guard)(nil), (*guests.Part)(nil), (*asking.Part)(nil), (*announcements.Holder)(nil), (*atnic.Part)(nil), metrics.NewRounds(), metrics.NewUnsteeredPeers(), (*metrics.Paths)(nil), (*pathmanager.Pods)(nil), (*spreading.Spreading)(nil), (*crowd.Crowd)(nil), (*narrow.Narrow)(nil), (*slow.Slow)(nil), (*relayed.Part)(nil), (*transport.Part)(nil), registry,
	}
	found := map[string]string{}
	for _, collector := range collectors {
		descriptions := make(chan *prometheus.Desc)
		go func() { collector.Describe(descriptions); close(descriptions) }()
		for one := range descriptions {
			if parts := description.FindStringSubmatch(one.String()); parts != nil {
				labels := strings.FieldsFunc(parts[2], func(r rune) bool { return r == ',' })
				slices.Sort(labels)
				found[parts[1]] = strings.Join(labels, ", ")
			}
		}
	}
	return found
}

// documentedMetrics are those of the page: labels by name.
func documentedMetrics(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, line := range documented.FindAllStringSubmatch(read(t, "../docs/metrics.md"), -1) {
		var labels []string
		for _, label := range quoted.FindAllStringSubmatch(line[2], -1) {
			labels = append(labels, label[1])
		}
		slices.Sort(labels)
		found[line[1]] = strings.Join(labels, ", ")
	}
	return found
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestThePageOfMetricsHasThoseOfTheCodeWithTheirLabels(t *testing.T) {
	code, page := describedMetrics(), documentedMetrics(t)
	if len(code) < 30 {
		t.Fatalf("the code has only %v", code)
	}
	for name, labels := range code {
		if got, ok := page[name]; !ok || got != labels {
			t.Errorf("docs/metrics.md gives %s the labels %q, the code %q", name, got, labels)
		}
	}
	for name := range page {
		if _, ok := code[name]; !ok && strings.HasPrefix(name, "braid_") {
			t.Errorf("docs/metrics.md has %s, which the code has not", name)
		}
	}
}

func TestNoOtherFileMakesMetrics(t *testing.T) {
	makes := regexp.MustCompile(`prometheus\.New(Desc|Counter|Gauge|Histogram|Summary)|promauto\.`)
	var found []string
	for _, root := range []string{"agent", "bpf", "cmd", "controllers", "policy", "plugin"} {
		err := filepath.WalkDir("../"+root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			if makes.MatchString(read(t, path)) {
				found = append(found, strings.TrimPrefix(path, "../"))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(found, sources) {
		t.Errorf("metrics are made in %v; this test asks %v", found, sources)
	}
}

// alert is one of the PrometheusRule.
type alert struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

// dashboard is the part of a dashboard that has queries.
type dashboard struct {
	UID    string
	Panels []struct {
		ID          int
		Type, Title string
		Targets     []struct{ Expr string }
	}
}

// rendered decodes the object of this kind of the chart with everything.
func rendered(t *testing.T, kind string, into any) {
	t.Helper()
	out := mustHelm(t, "template", "braid", "braid", "--namespace", namespace, "--set", "crds.install=false", "--values", "testdata/everything.yaml")
	for object := range strings.SplitSeq(out, "\n---\n") {
		if !strings.Contains(object, "\nkind: "+kind+"\n") {
			continue
		}
		if err := yaml.Unmarshal([]byte(object), into); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("the chart has no %s", kind)
}

func alertsOf(t *testing.T) []alert {
	t.Helper()
	var rule struct {
		Spec struct{ Groups []struct{ Rules []alert } }
	}
	rendered(t, "PrometheusRule", &rule)
	var all []alert
	for _, group := range rule.Spec.Groups {
		all = append(all, group.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("there are no alerts")
	}
	return all
}

func expressions(alerts []alert) (all []string) {
	for _, alert := range alerts {
		all = append(all, alert.Expr)
	}
	return all
}

func dashboardOf(t *testing.T) dashboard {
	t.Helper()
	var object struct{ Data map[string]string }
	rendered(t, "ConfigMap", &object)
	var board dashboard
	if err := json.Unmarshal([]byte(object.Data["braid.json"]), &board); err != nil {
		t.Fatal(err)
	}
	return board
}

// queriesOf are the queries of a dashboard as Grafana asks them, by panel.
func queriesOf(board dashboard) map[string][]string {
	values := strings.NewReplacer("$__rate_interval", "5m", "$node", ".*", "$namespace", ".*")
	queries := map[string][]string{}
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			name := fmt.Sprintf("%d %s", panel.ID, panel.Title)
			queries[name] = append(queries[name], values.Replace(target.Expr))
		}
	}
	return queries
}

func TestEveryMetricInAQueryIsInThePage(t *testing.T) {
	page := documentedMetrics(t)
	queries := expressions(alertsOf(t))
	for _, some := range queriesOf(dashboardOf(t)) {
		queries = append(queries, some...)
	}
	for _, query := range queries {
		for _, name := range used.FindAllString(query, -1) {
			if _, ok := page[strings.TrimSuffix(name, "_bucket")]; !ok {
				t.Errorf("docs/metrics.md has no %s: %s", name, query)
			}
		}
	}
}

func TestEveryAlertSaysHowSevereItIsAndHasARunbook(t *testing.T) {
	page := read(t, "../docs/alerts.md")
	headings := map[string]bool{}
	for _, heading := range regexp.MustCompile(`(?m)^## (Braid\w+)$`).FindAllStringSubmatch(page, -1) {
		headings[heading[1]] = true
	}
	for _, alert := range alertsOf(t) {
		if !headings[alert.Alert] {
			t.Errorf("docs/alerts.md has no section %s", alert.Alert)
		}
		delete(headings, alert.Alert)
		if want := "/docs/alerts.html#" + strings.ToLower(alert.Alert); !strings.HasSuffix(alert.Annotations["runbook_url"], want) {
			t.Errorf("the runbook of %s is %s", alert.Alert, alert.Annotations["runbook_url"])
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, alert.Labels["severity"]) {
			t.Errorf("%s has the severity %q", alert.Alert, alert.Labels["severity"])
		}
		if alert.Annotations["summary"] == "" || alert.Annotations["description"] == "" {
			t.Errorf("%s has no summary or description", alert.Alert)
		}
	}
	if len(headings) > 0 {
		t.Errorf("docs/alerts.md has sections without an alert: %v", slices.Collect(maps.Keys(headings)))
	}
}

// A path that is new on a node is no reason for an alert; what is fine is in the recording.
func TestNoAlertFiresForAPathThatIsPending(t *testing.T) {
	pending := change{series: `braid_controller_path_nodes{path="blue",state="Pending"}`, values: []string{"1"}}
	all := alertsOf(t)
	for i, got := range ask(t, pending.after(t, recorded(t, "1", "2")), expressions(all)) {
		if got.Error != "" || len(got.Series) > 0 {
			t.Errorf("%s: %+v", all[i].Alert, got)
		}
	}
}

// scrape, request and answer are those of hack/promql.
type scrape struct {
	Time   int64             `json:"time"`
	Labels map[string]string `json:"labels"`
	Text   string            `json:"text"`
}

type request struct {
	Scrapes []scrape `json:"scrapes"`
	Queries []string `json:"queries"`
	Time    int64    `json:"time"`
}

type answer struct {
	Error  string
	Empty  []string
	Series []struct {
		Labels map[string]string
		Value  string
	}
}

// ask lets Prometheus' engine answer queries at the time of the last scrape.
// hack/promql is a module of its own because of all that Prometheus needs.
func ask(t *testing.T, scrapes []scrape, queries []string) []answer {
	t.Helper()
	in, err := json.Marshal(request{Scrapes: scrapes, Queries: queries, Time: latest(scrapes)})
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command("go", "-C", "../hack/promql", "run", ".")
	var stderr bytes.Buffer
	command.Stdin, command.Stderr = bytes.NewReader(in), &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("asking: %v: %s", err, stderr.String())
	}
	var answers []answer
	if err := json.Unmarshal(out, &answers); err != nil {
		t.Fatal(err)
	}
	return answers
}

func latest(scrapes []scrape) (at int64) {
	for _, one := range scrapes {
		at = max(at, one.Time)
	}
	return at
}

// recorded are the scrapes of these rounds, as testdata/scrapes/README.md says how
// they were made, with the labels that the chart's ServiceMonitor gives them.
func recorded(t *testing.T, rounds ...string) []scrape {
	t.Helper()
	var scrapes []scrape
	for _, round := range rounds {
		at, err := strconv.ParseInt(strings.TrimSpace(read(t, "testdata/scrapes/"+round+"/time")), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob("testdata/scrapes/" + round + "/*.prom")
		if err != nil || len(files) == 0 {
			t.Fatalf("looking for scrapes of round %s: %v", round, err)
		}
		for _, file := range files {
			component, node, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".prom"), "-")
			scrapes = append(scrapes, scrape{Time: at, Text: read(t, file) + "up 1\n", Labels: map[string]string{
				"job": "braid-" + component + "-metrics", "instance": component + "-" + node, "node": node,
				"namespace": "braid-system", "pod": "braid-" + component + "-" + node,
			}})
		}
	}
	return scrapes
}

func TestEveryPanelHasDataOfARunningCluster(t *testing.T) {
	var names, queries []string
	for name, some := range queriesOf(dashboardOf(t)) {
		for _, query := range some {
			names, queries = append(names, name), append(queries, query)
		}
	}
	for i, got := range ask(t, recorded(t, "1", "2", "3"), queries) {
		numbers := 0
		for _, series := range got.Series {
			if series.Value != "NaN" {
				numbers++
			}
		}
		if got.Error != "" || numbers == 0 {
			t.Errorf("panel %s gets nothing for %s: %+v", names[i], queries[i], got)
		}
	}
}

func TestNoAlertFiresWhileAllIsWell(t *testing.T) {
	all := alertsOf(t)
	for i, got := range ask(t, recorded(t, "1", "2"), expressions(all)) {
		if got.Error != "" || len(got.Series) > 0 {
			t.Errorf("%s: %+v", all[i].Alert, got)
		}
	}
}

func TestEverySelectorOfAnAlertSelectsSomething(t *testing.T) {
	all := alertsOf(t)
	for i, got := range ask(t, recorded(t, "1", "2", "3"), expressions(all)) {
		for _, empty := range got.Empty {
			// The recording is shorter than the time that they look back.
			if !strings.Contains(empty, " offset ") && !neverHere[all[i].Alert] {
				t.Errorf("%s: nothing is %s", all[i].Alert, empty)
			}
		}
		if got.Error != "" {
			t.Errorf("%s: %s", all[i].Alert, got.Error)
		}
	}
}

// neverHere are the alerts about series that begin with the trouble itself, which
// the recording has not.
var neverHere = map[string]bool{
	"BraidFlowsAvoidPath": true, "BraidHintEventsLost": true, "BraidTrafficNotSpread": true,
	"BraidProxyResets": true, "BraidXDPRefused": true,
}

// change is what is different in the rounds that are added to the recorded ones.
// There are as many as repeat says, a minute apart.
type change struct {
	repeat int
	// series begins the lines of the series that are changed, and values are what
	// they have in the added rounds by turns; a value of + and a number is added
	// to what was recorded, once for each round.
	series string
	values []string
	// without is a job that no target has any more.
	without string
	// add are lines of a series that the recording has not.
	add []string
}

func TestAnAlertFiresWhenItShould(t *testing.T) {
	tests := map[string]change{
		"BraidAgentDown":           {series: "up", values: []string{"0"}},
		"BraidAgentsMissing":       {without: "braid-agent-metrics"},
		"BraidRestarting":          {repeat: 4, series: "process_start_time_seconds", values: []string{"+100"}},
		"BraidChainReadErrors":     {series: "braid_chain_read_errors_total", values: []string{"+2"}},
		"BraidPathDead":            {},
		"BraidPathDeadEverywhere":  {},
		"BraidPathFlapping":        {repeat: 9, series: `braid_path_peers{path="blue",state="dead"}`, values: []string{"1", "0"}},
		"BraidPathUnanswered":      {series: `braid_path_peers{path="blue",state="unknown"}`, values: []string{"2"}},
		"BraidPathLoss":            {series: `braid_path_loss_ratio{path="blue"}`, values: []string{"0.05"}},
		"BraidFlowsAvoidPath":      {add: []string{`braid_path_flows_avoiding{path="green"} 3`}},
		"BraidProberStalled":       {repeat: 2, series: "braid_probe_stalled_seconds_total", values: []string{"+30"}},
		"BraidProbesNotSent":       {repeat: 2, series: "braid_probes_unsent_total", values: []string{"+200"}},
		"BraidSpoofedPackets":      {},
		"BraidTenantAtLimit":       {repeat: 2, series: "braid_guard_dropped_bytes_total", values: []string{"+1e9"}},
		"BraidProxyResets":         {repeat: 2, add: []string{`braid_proxy_connections_total{outcome="Reset"} 0`, `braid_proxy_connections_total{outcome="Reset"} 5`}},
		"BraidXDPRefused":          {add: []string{`braid_xdp_refused{path="green",nic="eth1",reason="XDPUnsupported"} 1`}},
		"BraidControllerDown":      {without: "braid-controller-metrics"},
		"BraidNoLeader":            {series: "leader_election_master_status", values: []string{"0"}},
		"BraidReconcileErrors":     {repeat: 2, series: `controller_runtime_reconcile_errors_total{controller="plan"`, values: []string{"+30"}},
		"BraidReconcileStuck":      {series: "workqueue_longest_running_processor_seconds", values: []string{"90"}},
		"BraidCompileSlow":         {repeat: 2, series: `braid_controller_compile_duration_seconds_bucket{le="+Inf"`, values: []string{"+50"}},
		"BraidTrafficNotSpread":    {add: []string{`braid_controller_policy_pods{kind="MPTCPPolicy",namespace="shop",policy="spread",reason="PlainTCP"} 2`}},
		"BraidPathDown":            {series: `braid_path_up{path="blue"}`, values: []string{"0"}},
		"BraidPathNotReady":        {series: `braid_controller_path_nodes{path="blue",state="InterfaceDown"}`, values: []string{"1"}},
		"BraidAgentSilent":         {series: `braid_controller_agents{state="silent"}`, values: []string{"2"}},
		"BraidPolicyNotProgrammed": {series: "braid_controller_policy_programmed", values: []string{"0"}},
		"BraidHintEventsLost":      {repeat: 2, add: []string{`braid_controller_hint_events_total{outcome="dropped"} 0`, `braid_controller_hint_events_total{outcome="dropped"} 5`}},
	}
	for _, alert := range alertsOf(t) {
		t.Run(alert.Alert, func(t *testing.T) {
			change, ok := tests[alert.Alert]
			if !ok {
				t.Fatal("no test makes it fire")
			}
			if got := ask(t, change.after(t, recorded(t, "1", "2", "3")), []string{alert.Expr}); got[0].Error != "" || len(got[0].Series) == 0 {
				t.Errorf("%s: %+v", alert.Expr, got)
			}
		})
	}
}

// after adds the rounds with the change or, without any, changes the last one.
func (c change) after(t *testing.T, scrapes []scrape) []scrape {
	t.Helper()
	end := latest(scrapes)
	var all []scrape
	for _, one := range scrapes {
		if one.Labels["job"] == c.without {
			continue
		}
		if one.Time < end || c.repeat > 0 {
			all = append(all, one)
		}
		for round := range max(c.repeat, 1) {
			if one.Time == end {
				all = append(all, c.round(t, one, round))
			}
		}
	}
	return all
}

func (c change) round(t *testing.T, one scrape, round int) scrape {
	t.Helper()
	if c.repeat > 0 {
		one.Time += int64(round+1) * 60_000
	}
	if round < len(c.add) {
		one.Text += c.add[round] + "\n"
	}
	if c.series == "" {
		return one
	}
	lines := strings.Split(one.Text, "\n")
	for i, line := range lines {
		rest, ok := strings.CutPrefix(line, c.series)
		if ok && strings.ContainsAny(rest[:1], "{ ,}") {
			cut := strings.LastIndexByte(line, ' ')
			lines[i] = line[:cut+1] + c.value(t, line[cut+1:], round)
		}
	}
	one.Text = strings.Join(lines, "\n")
	return one
}

func (c change) value(t *testing.T, before string, round int) string {
	t.Helper()
	value := c.values[round%len(c.values)]
	more, ok := strings.CutPrefix(value, "+")
	if !ok {
		return value
	}
	number, err := strconv.ParseFloat(before, 64)
	if err != nil {
		t.Fatal(err)
	}
	added, err := strconv.ParseFloat(more, 64)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.FormatFloat(number+added*float64(round+1), 'g', -1, 64)
}
