// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/lab"
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
	*kubelets
	address string
}

// measureHTTP counts the requests that a web server answers, as seed 003's figure 11
// does, by ways to ask and sizes of files.
func measureHTTP(ctx context.Context, b *bench) (err error) {
	k, err := newKubelets(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.Down()) }()
	w := &web{kubelets: k}
	if err := w.start(ctx); err != nil {
		return err
	}
	say("asking for files")
	rates := map[string][]float64{}
	for trial := range b.trials {
		for _, size := range requested {
			line := fmt.Sprintf("trial %d, files of %s:", trial+1, size.name)
			for _, i := range rand.Perm(len(requestModes)) {
				mode := requestModes[i]
				rate, err := w.rate(ctx, &mode, size)
				if err != nil {
					return fmt.Errorf("%s, files of %s: %w", mode.name, size.name, err)
				}
				name := "http." + size.name + "." + mode.name + "_rps"
				rates[name] = append(rates[name], rate)
				line += fmt.Sprintf(" %s %.0f/s", mode.name, rate)
			}
			fmt.Println(line)
		}
	}
	for name, trials := range rates {
		b.add(name, "requests/s", trials)
	}
	for _, size := range requested {
		for _, mode := range requestModes[1:] {
			of := rates["http."+size.name+"."+mode.name+"_rps"]
			b.add("http."+size.name+"."+mode.name+"_to_tcp", "ratio", ratios(of, rates["http."+size.name+".tcp_rps"], 1))
		}
	}
	return nil
}

// start starts the server, whose sockets speak MPTCP and plain TCP, and the client.
func (w *web) start(ctx context.Context) error {
	for _, pod := range []*corev1.Pod{workloadPod("web", 2, "mptcpize", "run", "nginx"), workloadPod("client", 1, "busybox", "sleep", "86400")} {
		if err := w.Client.Create(ctx, pod); err != nil {
			return fmt.Errorf("creating pod %s: %w", pod.Name, err)
		}
	}
	if _, err := w.kubectl(ctx, "wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s"); err != nil {
		return err
	}
	var pod corev1.Pod
	if err := w.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: "web"}, &pod); err != nil {
		return fmt.Errorf("finding the server: %w", err)
	}
	w.address = pod.Status.PodIP
	return nil
}

func workloadPod(name string, node int, command ...string) *corev1.Pod {
	pod := quietPod(name)
	pod.Spec.NodeSelector = onNode(node)
	pod.Spec.Containers = []corev1.Container{{Name: "main", Image: lab.WorkloadImage, ImagePullPolicy: corev1.PullNever, Command: command}}
	return pod
}

// setPolicy removes the policy and applies another one, or none, and waits until
// each is done.
func (w *web) setPolicy(ctx context.Context, policy string) error {
	if err := w.Client.DeleteAllOf(ctx, &v1alpha1.MPTCPPolicy{}, client.InNamespace("default")); err != nil {
		return fmt.Errorf("removing the policy: %w", err)
	}
	if err := w.settled(ctx, 0); err != nil || policy == "" {
		return err
	}
	if err := w.apply(ctx, policy); err != nil {
		return err
	}
	return w.settled(ctx, 2)
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
	out, err := w.kubectl(ctx, line...)
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
	out, err := w.kubectl(ctx, "exec", "client", "--", "busybox", "cat", "/proc/net/netstat")
	if err != nil {
		return 0, err
	}
	var names []string
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "MPTcpExt:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, name := range names {
			if name == "MPJoinSynAckRx" {
				return strconv.ParseInt(fields[i], 10, 64)
			}
		}
	}
	return 0, errors.New("the client has no counters of MPTCP")
}
