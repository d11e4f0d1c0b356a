// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/network"
)

// notWithEveryPolicy are the dashboard's rows about what the first policy does not ask for.
var notWithEveryPolicy = []string{"Subflows of pods with rules", "Rules and guardrails"}

// query is one of a panel.
type query struct{ panel, expr string }

// dashboardQueries are those of the rows that any policy fills, as Grafana asks them.
func dashboardQueries(t *testing.T) (queries []query) {
	t.Helper()
	text, err := os.ReadFile("../../charts/braid/files/dashboard.json")
	check(t, err)
	var board struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr string }
		}
	}
	check(t, json.Unmarshal(text, &board))
	values, row := strings.NewReplacer("$__rate_interval", "5m", "$node", ".*", "$namespace", ".*"), ""
	for _, panel := range board.Panels {
		if panel.Type == "row" {
			row = panel.Title
		}
		for _, target := range panel.Targets {
			if !slices.Contains(notWithEveryPolicy, row) {
				queries = append(queries, query{row + ": " + panel.Title, values.Replace(target.Expr)})
			}
		}
	}
	return queries
}

// The lab's agents and controller serve what the panels ask for while a policy without
// anything but pods spreads a transfer.
func TestNoPanelOfTheDashboardIsEmptyWhileTrafficRuns(t *testing.T) {
	s := &scene{Cluster: shared.Use(t), prometheus: newPrometheus(t), policy: testlab.NewPolicy(shop, "client", "server")}
	t.Cleanup(s.mendAll)
	capacity := resource.MustParse("30M")
	for _, name := range paths {
		path := testlab.NewPath(name)
		path.Spec.Capacity = &capacity
		s.Create(t, path)
	}
	s.Create(t, s.policy)
	s.WaitProgrammed(t, s.policy, 2)
	s.send(t, "client", "server", network.MPTCP)
	queries := dashboardQueries(t)
	var asked []string
	for _, one := range queries {
		asked = append(asked, one.expr)
	}
	var scrapes []scrape
	var empty []string
	for begun := time.Now(); time.Since(begun) < patience; time.Sleep(2 * time.Second) {
		scrapes, empty = append(scrapes, s.scrape(strings.TrimSpace)...), nil
		answers := s.prometheus.ask(t, scrapes, asked)
		for i := range answers {
			if answers[i].Error != "" || !answers[i].hasNumbers() {
				empty = append(empty, queries[i].panel+": "+queries[i].expr+" "+answers[i].Error)
			}
		}
		if len(empty) == 0 {
			s.expectNICsTold(t, scrapes)
			return
		}
	}
	t.Errorf("after %v these panels are empty:\n%s", patience, strings.Join(empty, "\n"))
}

func (a *answer) hasNumbers() bool {
	for _, series := range a.Series {
		if series.Value != "NaN" {
			return true
		}
	}
	return false
}

// expectNICsTold asks whether the panels are right: the sender's NICs carry the transfer, on
// behalf of the policy.
func (s *scene) expectNICsTold(t *testing.T, scrapes []scrape) {
	t.Helper()
	const who = `{node="node1", namespace="shop", policy="MPTCPPolicy/shop/spread"}`
	questions := map[string]int{ // and how many series answer
		`rate(braid_path_sent_bytes_total` + who + `[5m]) > 1000`:                                                                        len(paths),
		`rate(braid_path_received_bytes_total` + who + `[5m]) > 100`:                                                                     len(paths),
		`rate(braid_path_nic_sent_bytes_total{node="node1"}[5m]) > 1000`:                                                                 len(paths),
		`sum(rate(braid_path_sent_bytes_total{node="node1"}[5m])) > 0.8 * sum(rate(braid_path_nic_sent_bytes_total{node="node1"}[5m]))`:  1,
		`sum(rate(braid_path_sent_bytes_total{node="node1"}[5m])) < 1.15 * sum(rate(braid_path_nic_sent_bytes_total{node="node1"}[5m]))`: 1,
		`braid_path_capacity_bits_per_second{node="node1"} == 30e6`:                                                                      len(paths),
	}
	for question, want := range questions {
		if got := s.prometheus.ask(t, scrapes, []string{question})[0]; got.Error != "" || len(got.Series) != want {
			t.Errorf("%s: %+v, and not %d series", question, got, want)
		}
	}
}
