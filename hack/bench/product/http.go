// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/bench/baseline"
	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

const (
	// requestClients ask for files at once, each for one after the other.
	requestClients = 20
	// fastMbit is the rate of links that small files do not fill.
	fastMbit = 1000
)

// webFile is one that is asked for, its bytes about, and for how long by how many.
type webFile struct {
	name    string
	bytes   int
	seconds int
	clients int
	// keepAlive has each client ask for all of its files over one connection.
	keepAlive bool
}

var requested = []webFile{
	{"1k", 1 << 10, 3, requestClients, false}, {"10k", 10 << 10, 3, requestClients, false},
	{"100k", 100 << 10, 4, requestClients, false}, {"1m", 1 << 20, 8, requestClients, false}, {"1m", 1 << 20, 4, 1, false},
	{"1k", 1 << 10, 3, requestClients, true}, {"100k", 100 << 10, 4, requestClients, true},
	{"30k", 30 << 10, 4, requestClients, false}, {"300k", 300 << 10, 6, requestClients, false},
}

// figure is what its figures are called.
func (f webFile) figure() string {
	switch {
	case f.clients == 1:
		return f.name + "_alone"
	case f.keepAlive:
		return f.name + "_keepalive"
	}
	return f.name
}

// requestMode is one way to ask.
type requestMode struct {
	name   string
	mptcp  bool   // the client's sockets
	policy string // selects both pods; empty for none
	// openAfter is how many bytes come before the policy's further subflows.
	openAfter int
	// single: the policy has connections stay with one subflow.
	single bool
	// bond is how the nodes divide what they send among their NICs; empty for not at all.
	bond baseline.BondMode
}

// transportOfAll gives both pods settings of their sockets, has them ask each other, and
// accept it.
const transportOfAll = "  transport: {userTimeout: 1m, delayedAck: 20ms, initialWindow: 20, request: {initialWindow: 20, userTimeout: 30s}" +
	acceptsRequests + "\n"

// settingsOfAll gives both pods settings alone.
const settingsOfAll = "  transport: {congestionControl: cubic, initialWindow: 20, userTimeout: 1m, keepalive: {idle: 1m, interval: 10s, probes: 3}}\n"

var requestModes = []requestMode{
	{name: "tcp"},
	{name: "bond_rr", bond: baseline.BalanceRoundRobin},
	{name: "bond_l34", bond: baseline.Layer34},
	{name: "mptcp", mptcp: true},
	{name: "braid", mptcp: true, policy: selectAll, openAfter: v1alpha1.DefaultOpenAfterBytes},
	{name: "braid_agent", mptcp: true, policy: selectAll + "  subflows: {manager: Agent}\n", openAfter: v1alpha1.DefaultOpenAfterBytes},
	{name: "braid_one", mptcp: true, policy: selectAll + "  subflows: {count: 1}\n", single: true},
	{name: "braid_transport", mptcp: true, policy: selectAll + transportOfAll, openAfter: v1alpha1.DefaultOpenAfterBytes},
	{name: "braid_settings", mptcp: true, policy: selectAll + settingsOfAll, openAfter: v1alpha1.DefaultOpenAfterBytes},
	{name: "braid_at_once", mptcp: true, policy: selectAll + "  subflows: {openAfter: {time: 0s}}\n"},
}

// expects tells whether subflows are to be joined for a request, and is not sure
// where its file takes about as long to come as further subflows wait.
func (m *requestMode) expects(r webFile) (joins, sure bool) {
	switch {
	case m.policy == "", m.single:
		return false, true
	case r.keepAlive:
		return true, true
	case 10*r.bytes < m.openAfter:
		return false, true
	}
	return true, m.openAfter == 0
}

// web is a cluster with a web server and a client on different nodes.
type web struct {
	*rig.Cluster
	client, server string // names of the pods
	address        string
	uneven         bool // a path is worse than the others: any file may take as long there as further subflows wait
}

func newWeb(ctx context.Context) (*web, error) {
	return newWebOn(ctx, network.Spec{LinkMbit: rig.LinkMbit})
}

// newFastWeb is the same with links that do not limit requests for small files.
func newFastWeb(ctx context.Context) (*web, error) {
	return newWebOn(ctx, network.Spec{LinkMbit: fastMbit})
}

func newWebOn(ctx context.Context, links network.Spec) (*web, error) {
	c, err := rig.NewClusterOn(ctx, lab.Native, links)
	if err != nil {
		return nil, err
	}
	w := &web{Cluster: c, client: "client", server: "web"}
	if err := w.start(ctx); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// start starts the server, whose sockets speak MPTCP and plain TCP, and the client.
func (w *web) start(ctx context.Context) error {
	server := workloadPod(w.server, 2, "mptcpize", "run", "nginx")
	asking := workloadPod(w.client, 1, "busybox", "sleep", "86400")
	if err := createPods(ctx, w.Cluster, server, asking); err != nil {
		return err
	}
	if _, err := w.RunKubectl(ctx, "wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s"); err != nil {
		return err
	}
	address, err := w.RunKubectl(ctx, "get", "pod", w.server, "--output", "jsonpath={.status.podIP}")
	w.address = address
	return err
}

// measureHTTP counts the requests that a web server answers, as seed 003's figure 11
// does, by ways to ask and sizes of files; small files then also with agents that hardly
// get a processor.
func measureHTTP(ctx context.Context, m *rig.Measurement, w *web) error {
	if err := w.measureAll(ctx, m, "http.", requested); err != nil {
		return err
	}
	if err := w.limitAgents(ctx, "100m"); err != nil {
		return err
	}
	return w.measureAll(ctx, m, "http.limited.", requested[:2])
}

// measureFastHTTP is the same for small files alone, whose rate the processors limit and not the links.
func measureFastHTTP(ctx context.Context, m *rig.Measurement, w *web) error {
	return w.measureAll(ctx, m, "http_fast.", requested[:2])
}

func (w *web) measureAll(ctx context.Context, m *rig.Measurement, prefix string, sizes []webFile) error {
	for range m.Trials {
		for _, size := range sizes {
			if err := w.measure(ctx, m, prefix+size.figure()+".", size); err != nil {
				return err
			}
		}
	}
	return nil
}

// limitAgents gives each agent so much of a processor.
func (w *web) limitAgents(ctx context.Context, processor string) error {
	_, err := w.RunKubectl(ctx, "--namespace", lab.SystemNamespace, "set", "resources", "daemonset/braid-agent",
		"--limits=cpu="+processor, "--requests=cpu="+processor)
	if err == nil {
		_, err = w.RunKubectl(ctx, "--namespace", lab.SystemNamespace, "rollout", "status", "daemonset/braid-agent", "--timeout=3m")
	}
	return err
}

// measure asks for files of one size in each way that is among the cases, by the names
// of their figures.
func (w *web) measure(ctx context.Context, m *rig.Measurement, prefix string, size webFile) error {
	rates := map[string]float64{}
	for mode := range rig.Shuffled(requestModes) {
		if !m.Cases.MatchString(prefix + mode.name) {
			continue
		}
		got, err := w.rate(ctx, &mode, size)
		if err != nil {
			return fmt.Errorf("%s%s: %w", prefix, mode.name, err)
		}
		note(m, prefix, &mode, got)
		rates[mode.name] = got.rate
	}
	compare(m, prefix, rates)
	return nil
}

func note(m *rig.Measurement, prefix string, mode *requestMode, got requests) {
	m.Add(prefix+mode.name+"_rps", got.rate)
	if got.resets > 0 {
		m.Add(prefix+mode.name+"_resets", got.resets)
	}
}

func compare(m *rig.Measurement, prefix string, rates map[string]float64) {
	for name, rate := range rates {
		for _, to := range comparedTo(name) {
			if rates[to] > 0 {
				m.Add(prefix+name+"_to_"+to, rate/rates[to])
			}
		}
	}
}

// comparedTo are the modes to which one is compared.
func comparedTo(name string) []string {
	switch name {
	case "tcp":
		return nil
	case "mptcp", "bond_rr", "bond_l34":
		return []string{"tcp"}
	case "braid":
		return []string{"tcp", "mptcp", "bond_rr", "bond_l34"}
	case "braid_transport", "braid_settings":
		return []string{"tcp", "mptcp", "braid"}
	}
	return []string{"tcp", "mptcp"}
}

// setPolicy removes the policy and applies another one, or none, and waits until
// each is done.
func (w *web) setPolicy(ctx context.Context, policy string) error {
	if err := w.Client.DeleteAllOf(ctx, &v1alpha1.MPTCPPolicy{}, client.InNamespace("default")); err != nil {
		return fmt.Errorf("removing the policy: %w", err)
	}
	if err := w.Settled(ctx, 0); err != nil || policy == "" {
		return err
	}
	if err := w.Apply(ctx, policy); err != nil {
		return err
	}
	if err := w.Settled(ctx, 2); err != nil {
		return err
	}
	time.Sleep(rig.PolicyAge)
	return nil
}

var (
	ratePattern     = regexp.MustCompile(`(?m)^Requests per second:\s+([0-9.]+)`)
	completePattern = regexp.MustCompile(`(?m)^Complete requests:\s+([0-9]+)$`)
	failedPattern   = regexp.MustCompile(`(?m)^Failed requests:\s+([0-9]+)$`)
	// Of failures: connections that were reset, and answers of another length. ab counts what
	// was reset among these too.
	resetPattern = regexp.MustCompile(`(?m)^\s+\(Connect: 0, Receive: ([0-9]+),`)
	shortPattern = regexp.MustCompile(`(?m)^\s+\(Connect: 0, Receive: [0-9]+, Length: ([0-9]+),`)
)

// fewestPerReset is how many requests have to go well for each whose connection was reset:
// kernels reset one now and then (docs/kernel-notes.md).
const fewestPerReset = 1000

// requests are those for one file.
type requests struct {
	rate   float64 // answered in a second
	resets float64 // whose connections were reset
}

// rate asks for a file in one mode.
func (w *web) rate(ctx context.Context, mode *requestMode, r webFile) (got requests, _ error) {
	if err := w.setPolicy(ctx, mode.policy); err != nil {
		return got, err
	}
	err := rig.Use(ctx, w.bondsOf(mode.bond), func(bonds) (err error) {
		got, err = w.ask(ctx, mode, r)
		return err
	})
	return got, err
}

// ask asks for a file in a mode that is set.
func (w *web) ask(ctx context.Context, mode *requestMode, r webFile) (requests, error) {
	line := []string{"exec", w.client, "--"}
	if mode.mptcp {
		line = append(line, "mptcpize", "run")
	}
	// -t sets a number of requests too, which has to be raised after it; -r goes on after a reset.
	line = append(line, "ab", "-q", "-r", "-c", strconv.Itoa(r.clients), "-t", strconv.Itoa(r.seconds), "-n", "10000000", "http://"+w.address+"/"+r.name)
	if r.keepAlive {
		line = slices.Insert(line, len(line)-1, "-k")
	}
	before, err := w.joins(ctx)
	if err != nil {
		return requests{}, err
	}
	out, err := w.RunKubectl(ctx, line...)
	if err != nil {
		return requests{}, err
	}
	after, err := w.joins(ctx)
	if err != nil {
		return requests{}, err
	}
	if joins, sure := mode.expects(r); sure && !w.uneven && joins != (after > before) {
		return requests{}, fmt.Errorf("%d subflows joined", after-before)
	}
	return requestsIn(out)
}

// requestsIn reads what ab prints. Requests that failed are an error, but for a few whose
// connections were reset.
func requestsIn(out string) (got requests, err error) {
	if strings.Contains(out, "Non-2xx responses:") {
		return got, fmt.Errorf("ab says: %s", out)
	}
	rate, complete, failed := foundIn(out, ratePattern), foundIn(out, completePattern), foundIn(out, failedPattern)
	resets, short := foundIn(out, resetPattern), foundIn(out, shortPattern)
	switch {
	case failed == 0 && rate >= 0:
		return requests{rate: rate}, nil
	case rate >= 0 && short <= resets && resets*fewestPerReset <= complete && resets > 0:
		return requests{rate: rate, resets: resets}, nil
	}
	return got, fmt.Errorf("ab says: %s", out)
}

// foundIn is the number that a pattern finds, and -1 without one.
func foundIn(out string, pattern *regexp.Regexp) float64 {
	match := pattern.FindStringSubmatch(out)
	if match == nil {
		return -1
	}
	number, err := strconv.ParseFloat(match[1], 64)
	if err != nil {
		return -1
	}
	return number
}

// joins are the subflows that the client has joined so far.
func (w *web) joins(ctx context.Context) (int64, error) {
	out, err := w.RunKubectl(ctx, "exec", w.client, "--", "busybox", "grep", "MPTcpExt:", "/proc/net/netstat")
	if err != nil {
		return 0, err
	}
	names, values, found := strings.Cut(strings.TrimSpace(out), "\n")
	i, counters := slices.Index(strings.Fields(names), "MPJoinSynAckRx"), strings.Fields(values)
	if !found || i < 0 || i >= len(counters) {
		return 0, errors.New("the client has no counters of MPTCP")
	}
	return strconv.ParseInt(counters[i], 10, 64)
}
