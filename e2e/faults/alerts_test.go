// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/metricsserver"
)

// alert is one of the chart's.
type alert struct{ Alert, Expr string }

// looksBack is true where the expression needs more than the last scrape.
func (a alert) looksBack() bool { return strings.Contains(a.Expr, "[") }

func readAlerts(t *testing.T) (all []alert) {
	t.Helper()
	text, err := os.ReadFile("../../charts/braid/files/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rules struct{ Groups []struct{ Rules []alert } }
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	for _, group := range rules.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

// scrape and request are those of hack/promql.
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

// mostRounds of scrapes are kept for the alerts that look back.
const mostRounds = 12

// prometheus scrapes the controller and the agents, and evaluates the chart's alerts. How
// long one has to be pending before it fires is left out: that is Prometheus' own.
type prometheus struct {
	program string
	alerts  []alert
	rounds  [][]scrape
}

func newPrometheus(t *testing.T) *prometheus {
	t.Helper()
	p := &prometheus{program: filepath.Join(t.TempDir(), "promql"), alerts: readAlerts(t)}
	if out, err := exec.Command("go", "-C", "../../hack/promql", "build", "-o", p.program, ".").CombinedOutput(); err != nil {
		t.Fatalf("building hack/promql: %v: %s", err, out)
	}
	return p
}

// firing scrapes, and lists the alerts whose expressions hold, with their labels.
func (s *scene) firing(t *testing.T) string {
	t.Helper()
	p := s.prometheus
	p.rounds = append(p.rounds, s.scrape(ours))
	if len(p.rounds) > mostRounds {
		p.rounds = p.rounds[1:]
	}
	last := p.rounds[len(p.rounds)-1]
	return p.evaluate(t, last, false) + p.evaluate(t, slices.Concat(p.rounds...), true)
}

// evaluate asks for the alerts that look back, or for the others: what ended with the last
// round counts for nothing there.
func (p *prometheus) evaluate(t *testing.T, scrapes []scrape, back bool) string {
	t.Helper()
	wanted := slices.DeleteFunc(slices.Clone(p.alerts), func(a alert) bool { return a.looksBack() != back })
	var queries []string
	for _, one := range wanted {
		queries = append(queries, one.Expr)
	}
	answers := p.ask(t, scrapes, queries)
	var text strings.Builder
	for i, answer := range answers {
		if answer.Error != "" {
			t.Errorf("%s: %s", wanted[i].Alert, answer.Error)
		}
		for _, series := range answer.Series {
			fmt.Fprintln(&text, wanted[i].Alert+labelsText(series.Labels))
		}
	}
	return text.String()
}

// answer is that of hack/promql.
type answer struct {
	Error  string
	Series []struct {
		Labels map[string]string
		Value  string
	}
}

// ask lets Prometheus' engine answer queries as of the last scrape.
func (p *prometheus) ask(t *testing.T, scrapes []scrape, queries []string) (answers []answer) {
	t.Helper()
	in, err := json.Marshal(request{Scrapes: scrapes, Queries: queries, Time: scrapes[len(scrapes)-1].Time})
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(p.program)
	var stderr bytes.Buffer
	command.Stdin, command.Stderr = bytes.NewReader(in), &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("asking Prometheus' engine: %v: %s", err, stderr.String())
	}
	if err := json.Unmarshal(out, &answers); err != nil {
		t.Fatal(err)
	}
	return answers
}

func labelsText(labels map[string]string) (text string) {
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if !slices.Contains([]string{"__name__", "job", "instance"}, name) && labels[name] != lab.SystemNamespace {
			text += " " + name + "=" + labels[name]
		}
	}
	return text
}

// scrape asks every target for these lines, as the chart's ServiceMonitor has Prometheus do.
func (s *scene) scrape(lines func(text string) string) (round []scrape) {
	at := time.Now().UnixMilli()
	add := func(job, node, text string, err error) {
		up := "up 1\n"
		if err != nil {
			text, up = "", "up 0\n"
		}
		round = append(round, scrape{Time: at, Text: lines(text) + up, Labels: map[string]string{
			"job": job, "instance": job + node, "node": node, "namespace": lab.SystemNamespace,
		}})
	}
	for _, node := range s.Network.Nodes {
		var text bytes.Buffer
		socket := filepath.Join(s.StatePath(node.NodeName()), "metrics.sock")
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := metricsserver.Fetch(ctx, socket, &text)
		cancel()
		add("braid-agent-metrics", node.NodeName(), text.String(), err)
	}
	text, err := s.askController()
	add("braid-controller-metrics", "", text, err)
	return round
}

var used = regexp.MustCompile(`(?m)^(braid_|leader_election_|process_start_|controller_runtime_reconcile_errors|workqueue_longest_).*\n`)

// ours are the lines that alerts use.
func ours(text string) string { return strings.Join(used.FindAllString(text, -1), "") }

func (s *scene) askController() (string, error) {
	ask, err := http.NewRequest(http.MethodGet, "https://"+s.controller+"/metrics", nil)
	if err != nil {
		return "", err
	}
	ask.Header.Set("Authorization", "Bearer "+s.Server.Config().BearerToken)
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // its own certificate
	answer, err := (&http.Client{Transport: transport, Timeout: 5 * time.Second}).Do(ask)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s", answer.Status)
	}
	return string(text), err
}
