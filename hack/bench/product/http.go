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

	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/bench/rig"
)

// requestClients ask for files at once, each for one after the other.
const requestClients = 20

// webFile is one that is asked for, its bytes about, and for how long.
type webFile struct {
	name    string
	bytes   int
	seconds int
}

var requested = []webFile{{"1k", 1 << 10, 3}, {"10k", 10 << 10, 3}, {"100k", 100 << 10, 4}, {"1m", 1 << 20, 8}}

// requestMode is one way to ask.
type requestMode struct {
	name   string
	mptcp  bool   // the client's sockets
	policy string // selects both pods; empty for none
	// openAfter is how many bytes come before the policy's further subflows.
	openAfter int
}

var requestModes = []requestMode{
	{name: "tcp"},
	{name: "mptcp", mptcp: true},
	{name: "braid", mptcp: true, policy: selectAll},
	{name: "braid_open_after", mptcp: true, policy: selectAll + "  subflows: {manager: Agent, openAfter: {bytes: 32Ki}}\n", openAfter: 32 << 10},
}

// expects tells whether subflows are to be joined for a request, and is not sure
// where its file may have come before anybody could have looked.
func (m *requestMode) expects(r webFile) (joins, sure bool) {
	if m.policy == "" || r.bytes < m.openAfter {
		return false, true
	}
	return true, m.openAfter == 0 || r.bytes > 10*m.openAfter
}

// web is a cluster with a web server and a client on different nodes.
type web struct {
	*rig.Cluster
	address string
}

func newWeb(ctx context.Context) (*web, error) {
	c, err := rig.NewCluster(ctx)
	if err != nil {
		return nil, err
	}
	w := &web{Cluster: c}
	if err := w.start(ctx); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// start starts the server, whose sockets speak MPTCP and plain TCP, and the client.
func (w *web) start(ctx context.Context) error {
	err := createPods(ctx, w.Cluster, workloadPod("web", 2, "mptcpize", "run", "nginx"), workloadPod("client", 1, "busybox", "sleep", "86400"))
	if err != nil {
		return err
	}
	if _, err := w.RunKubectl(ctx, "wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s"); err != nil {
		return err
	}
	w.address, err = w.RunKubectl(ctx, "get", "pod", "web", "--output", "jsonpath={.status.podIP}")
	return err
}

// measureHTTP counts the requests that a web server answers, as seed 003's figure 11
// does, by ways to ask and sizes of files.
func measureHTTP(ctx context.Context, m *rig.Measurement, w *web) error {
	for range m.Trials {
		for _, size := range requested {
			prefix := "http." + size.name + "."
			for mode := range rig.Shuffled(requestModes) {
				rate, err := w.rate(ctx, &mode, size)
				if err != nil {
					return fmt.Errorf("%s, files of %s: %w", mode.name, size.name, err)
				}
				m.Add(prefix+mode.name+"_rps", rate)
			}
			for _, mode := range requestModes[1:] {
				m.Add(prefix+mode.name+"_to_tcp", m.Last(prefix+mode.name+"_rps")/m.Last(prefix+"tcp_rps"))
			}
		}
	}
	return nil
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
	return w.Settled(ctx, 2)
}

var (
	ratePattern   = regexp.MustCompile(`(?m)^Requests per second:\s+([0-9.]+)`)
	failedPattern = regexp.MustCompile(`(?m)^Failed requests:\s+([0-9]+)$`)
)

// rate asks for a file in one mode, and returns the requests answered in a second.
func (w *web) rate(ctx context.Context, mode *requestMode, r webFile) (float64, error) {
	if err := w.setPolicy(ctx, mode.policy); err != nil {
		return 0, err
	}
	line := []string{"exec", "client", "--"}
	if mode.mptcp {
		line = append(line, "mptcpize", "run")
	}
	// -t sets a number of requests too, which has to be raised after it.
	line = append(line, "ab", "-q", "-c", strconv.Itoa(requestClients), "-t", strconv.Itoa(r.seconds), "-n", "10000000", "http://"+w.address+"/"+r.name)
	before, err := w.joins(ctx)
	if err != nil {
		return 0, err
	}
	out, err := w.RunKubectl(ctx, line...)
	if err != nil {
		return 0, err
	}
	after, err := w.joins(ctx)
	if err != nil {
		return 0, err
	}
	if joins, sure := mode.expects(r); sure && joins != (after > before) {
		return 0, fmt.Errorf("%d subflows joined", after-before)
	}
	return rateIn(out)
}

// rateIn reads what ab prints; a request that failed is an error.
func rateIn(out string) (float64, error) {
	rate, failed := ratePattern.FindStringSubmatch(out), failedPattern.FindStringSubmatch(out)
	if rate == nil || failed == nil || failed[1] != "0" || strings.Contains(out, "Non-2xx responses:") {
		return 0, fmt.Errorf("ab says: %s", out)
	}
	return strconv.ParseFloat(rate[1], 64)
}

// joins are the subflows that the client has joined so far.
func (w *web) joins(ctx context.Context) (int64, error) {
	out, err := w.RunKubectl(ctx, "exec", "client", "--", "busybox", "grep", "MPTcpExt:", "/proc/net/netstat")
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
