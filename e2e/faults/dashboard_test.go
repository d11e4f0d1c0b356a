// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/network"
)

// notWithEveryPolicy are the dashboard's rows about what the first policy does not ask for.
var notWithEveryPolicy = []string{"Subflows of pods with rules", "Rules and guardrails"}

// query is one of a panel.
type query struct{ row, panel, expr string }

// dashboardQueries are those of all panels, as Grafana asks them.
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
			queries = append(queries, query{row, panel.Title, values.Replace(target.Expr)})
		}
	}
	return queries
}

// The lab's agents and controller serve what the panels ask for: while a policy without
// anything but pods spreads a transfer, all but those about rules and guardrails, and those
// too once there are some.
func TestNoPanelOfTheDashboardIsEmptyWhileTrafficRuns(t *testing.T) {
	s := newScene(t, shared, controllerMetrics)
	s.policy = testlab.NewPolicy(shop, "client", "server")
	scrapes := s.scrape(everything) // some panels show what happens between two scrapes
	capacity := *resource.NewQuantity(linkMbit*1e6, resource.DecimalSI)
	for _, name := range paths {
		path := testlab.NewPath(name)
		path.Spec.Capacity = &capacity
		s.Create(t, path)
	}
	s.Create(t, s.policy)
	s.WaitProgrammed(t, s.policy, 2)
	s.send(t, "client", "server", network.MPTCP, 4*linkMbit)
	all := dashboardQueries(t)
	scrapes = s.expectFilled(t, scrapes, slices.DeleteFunc(slices.Clone(all), func(q query) bool { return slices.Contains(notWithEveryPolicy, q.row) }))
	s.expectNICsTold(t, scrapes)
	s.askForMore(t)
	s.expectFilled(t, scrapes, all)
}

// askForMore has rules and guardrails do what the other panels are about.
func (s *scene) askForMore(t *testing.T) {
	t.Helper()
	var rules []v1alpha1.Rule
	check(t, yaml.Unmarshal([]byte(`
- {name: seen, actions: [{type: Record}]}
- {name: modest, match: {direction: FromEndpoint, paths: [red]}, actions: [{type: RateLimit, rateLimit: {rate: 2M, per: Subflow}}]}
- {name: shut, match: {destination: {ports: [{port: 9}]}}, actions: [{type: Drop}]}
`), &rules))
	s.Update(t, s.policy, func() { s.policy.Spec.Rules = rules })
	s.WaitProgrammed(t, s.policy, 2)
	apply(tenants("bounded", "  hints: [MaxRate]\n  spoofCheck: Enforce\n  tenantPaths: [{path: green, maxRate: 1M}]"))(t, s)
	annotate("client", v1alpha1.AnnotationPreferredPaths, "green")(t, s) // which the guardrail refuses
	stranger := netip.MustParseAddr("192.0.2.99")
	s.WaitFor(t, "the spoof check drops a packet", patience, func(context.Context) error {
		testlab.Forge(t, s.Network.Pod("client"), testlab.Forgery{From: netip.AddrPortFrom(stranger, 1), To: testlab.UDPTo(s.Network.Pod("server").IPv4), Flags: testlab.SYN})
		if round := s.scrape(everything); !strings.Contains(fmt.Sprint(round), "\nbraid_guard_spoofed_packets_total{") {
			return errors.New("no metric counts one")
		}
		return nil
	})
}

// expectFilled scrapes until each query has an answer.
func (s *scene) expectFilled(t *testing.T, scrapes []scrape, queries []query) []scrape {
	t.Helper()
	var asked, empty []string
	for _, one := range queries {
		asked = append(asked, one.expr)
	}
	for begun := time.Now(); time.Since(begun) < patience; time.Sleep(2 * time.Second) {
		scrapes, empty = append(scrapes, s.scrape(everything)...), nil
		answers := s.prometheus.ask(t, scrapes, asked)
		for i := range answers {
			if answers[i].Error != "" || !answers[i].hasNumbers() {
				empty = append(empty, queries[i].row+": "+queries[i].panel+": "+queries[i].expr+" "+answers[i].Error)
			}
		}
		if len(empty) == 0 {
			return scrapes
		}
	}
	t.Errorf("after %v these panels are empty:\n%s", patience, strings.Join(empty, "\n"))
	return scrapes
}

// everything is what panels may ask for, the runtime's and client's own series among it.
func everything(text string) string { return text }

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
	of := func(metric string) string { return `rate(` + metric + who + `[5m])` }
	nics := `sum(rate(braid_path_nic_sent_bytes_total{node="node1"}[5m]))`
	questions := []string{
		`count(` + of("braid_path_sent_bytes_total") + ` > 10000) >= 3`,
		`count(` + of("braid_path_received_bytes_total") + ` > 100) >= 3`,
		`sum(` + of("braid_path_sent_bytes_total") + `) > 0.9 * ` + nics,
		`sum(` + of("braid_path_sent_bytes_total") + `) < 1.5 * ` + nics, // queues drop some
		fmt.Sprintf(`count(braid_path_capacity_bits_per_second{node="node1"} == %de6) == %d`, linkMbit, len(paths)),
	}
	for i, got := range s.prometheus.ask(t, scrapes, questions) {
		if got.Error != "" || len(got.Series) != 1 {
			t.Errorf("it is not so that %s: %+v", questions[i], got)
		}
	}
}
