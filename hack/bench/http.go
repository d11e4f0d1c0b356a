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

// requested are the sizes of files, and for how long they are asked for.
var requested = []struct {
	file    string
	seconds int
}{{"1k", 3}, {"10k", 3}, {"100k", 4}, {"1m", 8}}

// requestMode is one way to ask.
type requestMode struct {
	name  string
	mptcp bool // the client's sockets
	braid bool // a policy selects both pods
}

var requestModes = []requestMode{{name: "tcp"}, {name: "mptcp", mptcp: true}, {name: "braid", mptcp: true, braid: true}}

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
			line := fmt.Sprintf("trial %d, files of %s:", trial+1, size.file)
			for _, i := range rand.Perm(len(requestModes)) {
				mode := requestModes[i]
				rate, err := w.rate(ctx, mode, size.file, size.seconds)
				if err != nil {
					return fmt.Errorf("%s, files of %s: %w", mode.name, size.file, err)
				}
				name := "http." + size.file + "." + mode.name + "_rps"
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
		for _, mode := range []string{"mptcp", "braid"} {
			of := rates["http."+size.file+"."+mode+"_rps"]
			b.add("http."+size.file+"."+mode+"_to_tcp", "ratio", ratios(of, rates["http."+size.file+".tcp_rps"], 1))
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

// setBraid applies the policy or removes it, and waits until that is done.
func (w *web) setBraid(ctx context.Context, on bool) error {
	if !on {
		if err := w.Client.DeleteAllOf(ctx, &v1alpha1.MPTCPPolicy{}, client.InNamespace("default")); err != nil {
			return fmt.Errorf("removing the policy: %w", err)
		}
		return w.settled(ctx, 0)
	}
	if err := w.apply(ctx, selectAll); err != nil {
		return err
	}
	return w.settled(ctx, 2)
}

var (
	ratePattern   = regexp.MustCompile(`(?m)^Requests per second:\s+([0-9.]+)`)
	failedPattern = regexp.MustCompile(`(?m)^Failed requests:\s+([0-9]+)$`)
)

// rate asks for a file in one mode, and returns the requests answered in a second.
func (w *web) rate(ctx context.Context, mode requestMode, file string, seconds int) (float64, error) {
	if err := w.setBraid(ctx, mode.braid); err != nil {
		return 0, err
	}
	line := []string{"exec", "client", "--"}
	if mode.mptcp {
		line = append(line, "mptcpize", "run")
	}
	// -t sets a number of requests too, which has to be raised after it.
	line = append(line, "ab", "-q", "-c", strconv.Itoa(requestClients), "-t", strconv.Itoa(seconds), "-n", "10000000", "http://"+w.address+"/"+file)
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
	if joined := after > before; joined != mode.braid {
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
