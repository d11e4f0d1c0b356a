// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// overlays are the networks of the lab that are measured, by the names of their figures.
var overlays = []struct{ figure, network string }{
	{"vxlan4", "vxlan"}, {"vxlan6", "vxlan6"}, {"vxlan_external", "vxlan-external"},
}

// measureOverlay compares one connection's goodput over three links with that of pods that
// no policy selects, over the same overlay. Then a NIC fails, and last all NICs compute and
// check their checksums by the processor.
func measureOverlay(ctx context.Context, m *rig.Measurement, _ rig.Nothing) error {
	for _, o := range overlays {
		if !m.Cases.MatchString(o.figure) {
			continue
		}
		overlay, err := network.OverlayNamed(o.network)
		if err != nil {
			return err
		}
		setup := func(ctx context.Context) (*rig.Lab, error) { return overlaidLab(ctx, overlay) }
		err = rig.Use(ctx, setup, func(l *rig.Lab) error { return measureOverlaid(ctx, m, l, o.figure) })
		if err != nil {
			return fmt.Errorf("%s: %w", o.figure, err)
		}
	}
	if !slices.ContainsFunc(slices.Collect(maps.Keys(flannelFigures)), m.Cases.MatchString) {
		return nil
	}
	return rig.Use(ctx, newFlannel, func(c *rig.Cluster) error { return measureFlannel(ctx, m, c) })
}

// overlaidLab has a second pair of pods, which the policy does not select.
func overlaidLab(ctx context.Context, overlay network.Overlay) (*rig.Lab, error) {
	spec := network.Spec{Paths: rig.Paths[:3], LinkMbit: rig.LinkMbit, Overlay: overlay}
	l, err := rig.NewLab(ctx, spec, rig.PodOf("demo", "other", 1), rig.PodOf("demo", "server-other", 2))
	if err != nil {
		return nil, err
	}
	if err := l.Spread(ctx, ""); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func measureOverlaid(ctx context.Context, m *rig.Measurement, l *rig.Lab, figure string) error {
	single := rig.Route{
		From: l.Network.Pod("other").Namespace,
		To:   net.JoinHostPort(l.Network.Pod("server-other").IPv4, strconv.Itoa(lab.TrafficPort)),
	}
	send := func(all bool, options traffic.Options) (*traffic.Result, error) {
		route := single
		if all {
			route = l.Route(4)
		}
		return route.Transfer(ctx, options)
	}
	if err := compareOverlaid(m, figure, send); err != nil {
		return err
	}
	if figure == overlays[0].figure {
		if err := failOverlaid(ctx, m, l); err != nil {
			return err
		}
	}
	if err := countOthersChanged(ctx, m, l); err != nil {
		return err
	}
	return countChecksums(ctx, m, l, "overlay.checksum_errors")
}

// compareOverlaid measures both pairs of pods in turns. All that arrives is compared with
// what was sent.
func compareOverlaid(m *rig.Measurement, figure string, send func(all bool, options traffic.Options) (*traffic.Result, error)) error {
	for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
		for range m.Trials {
			mbit := map[bool]float64{}
			for all := range rig.Shuffled([]bool{false, true}) {
				options := steady
				options.Direction, options.Verify = direction, true
				result, err := send(all, options)
				if err == nil {
					err = rig.Intact(result)
				}
				if err != nil {
					return fmt.Errorf("%s, selected: %v: %w", direction, all, err)
				}
				mbit[all] = result.Mbit
			}
			name := fmt.Sprintf("overlay.%s.%s.", figure, direction)
			m.Add(name+"single_mbit", mbit[false])
			m.Add(name+"ratio", mbit[true]/(3*mbit[false]))
		}
	}
	return nil
}

// failOverlaid takes the NIC that the overlay's packets use, and another one, from either
// node.
func failOverlaid(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	for _, f := range failures(l) {
		rig.Say("%s", f)
		result, err := during(ctx, l, func() error { return f.fail(true) }, func() error { return f.fail(false) })
		if err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
		m.Add("overlay.failover_ms", result.LongestGapMs)
		if f.path == l.Network.Spec.Paths[0] {
			m.Add("overlay.failover.own_nic_ms", result.LongestGapMs)
		}
		time.Sleep(time.Second) // all is as before
	}
	return nil
}

// countChecksums turns the offloads of all NICs off, so that real checksums are on the
// wire and are checked, and counts those that are wrong.
func countChecksums(ctx context.Context, m *rig.Measurement, l *rig.Lab, figure string) error {
	for _, node := range l.Network.Nodes {
		for _, path := range l.Network.Spec.Paths {
			if _, err := node.Run("ethtool", "-K", path, "tx", "off", "rx", "off"); err != nil {
				return err
			}
			port := path + "." + strconv.Itoa(node.Number)
			if _, err := l.Network.Fabric.Run("ethtool", "-K", port, "tx", "off", "rx", "off"); err != nil {
				return err
			}
		}
	}
	before, err := checksumErrors(l)
	if err != nil {
		return err
	}
	for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
		if _, err := l.Transfer(ctx, traffic.Options{Duration: 2 * time.Second, Direction: direction, Verify: true}); err != nil {
			return err
		}
	}
	after, err := checksumErrors(l)
	m.Add(figure, after-before)
	return err
}

// checksumErrors are those that nodes and pods have counted, of UDP and TCP.
func checksumErrors(l *rig.Lab) (sum float64, err error) {
	for _, namespace := range []*network.Namespace{
		l.Sender.Namespace, l.Receiver.Namespace, l.Sender.Node.Namespace, l.Receiver.Node.Namespace,
	} {
		out, err := namespace.Run("nstat", "-a", "-z", "-s", "TcpInCsumErrors", "UdpInCsumErrors", "Udp6InCsumErrors")
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(out) {
			if fields := strings.Fields(line); len(fields) > 1 && strings.HasSuffix(fields[0], "CsumErrors") {
				count, err := strconv.ParseFloat(fields[1], 64)
				if err != nil {
					return 0, fmt.Errorf("reading %q: %w", line, err)
				}
				sum += count
			}
		}
	}
	return sum, nil
}

// newFlannel is a cluster whose network is flanneld's, with two pairs of pods for each way of settings,
// of which a policy selects one.
func newFlannel(ctx context.Context) (*rig.Cluster, error) {
	c, err := rig.NewClusterOn(ctx, lab.Flannel, network.Spec{LinkMbit: rig.LinkMbit})
	if err != nil {
		return nil, err
	}
	if err := startFlannelPods(ctx, c); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// flannelFigures are by what the pods' sockets are set: like those of the lab's pods, by which all other
// overlays are measured, or as the machine's kernel has it, which may be BBR and small buffers.
var flannelFigures = map[string]struct {
	suffix  string
	likeLab bool
}{
	"flannel": {"", true}, "flannel_defaults": {"-defaults", false},
}

func startFlannelPods(ctx context.Context, c *rig.Cluster) error {
	settings, err := transportSettings(c)
	if err != nil {
		return err
	}
	for _, of := range flannelFigures {
		client, server := trafficPod("client"+of.suffix, 1, "wait"), trafficPod("server"+of.suffix, 2, "serve", "--listen", ":5001")
		client.Labels, server.Labels = map[string]string{"app": "spread"}, map[string]string{"app": "spread"}
		pods := []*corev1.Pod{client, server, trafficPod("other"+of.suffix, 1, "wait"), trafficPod("server-other"+of.suffix, 2, "serve", "--listen", ":5001")}
		for _, pod := range pods {
			if of.likeLab {
				pod.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: settings}
			}
		}
		if err := createPods(ctx, c, pods...); err != nil {
			return err
		}
	}
	if _, err := c.RunKubectl(ctx, "wait", "--for=condition=Ready", "pod", "--all", "--timeout=2m"); err != nil {
		return err
	}
	err = c.Apply(ctx, `
apiVersion: braid.dev/v1alpha1
kind: MPTCPPolicy
metadata: {name: spread, namespace: default}
spec: {podSelector: {matchLabels: {app: spread}}}
`)
	if err != nil {
		return err
	}
	return c.Settled(ctx, 2*len(flannelFigures))
}

// transportSettings are those of the lab's pods, which its nodes have too.
func transportSettings(c *rig.Cluster) (settings []corev1.Sysctl, err error) {
	for _, name := range []string{"net.ipv4.tcp_congestion_control", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"} {
		value, err := c.Network.Nodes[0].Run("sysctl", "-n", name)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
		settings = append(settings, corev1.Sysctl{Name: name, Value: strings.Join(strings.Fields(value), " ")})
	}
	return settings, nil
}

func measureFlannel(ctx context.Context, m *rig.Measurement, c *rig.Cluster) error {
	for _, figure := range slices.Sorted(maps.Keys(flannelFigures)) {
		if !m.Cases.MatchString(figure) {
			continue
		}
		suffix := flannelFigures[figure].suffix
		err := compareOverlaid(m, figure, func(all bool, options traffic.Options) (*traffic.Result, error) {
			from, to := "other"+suffix, "server-other"+suffix
			if all {
				from, to = "client"+suffix, "server"+suffix
			}
			return transferBetween(ctx, c, from, to, options)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// transferBetween runs a transfer between pods of a cluster with kubelets.
func transferBetween(ctx context.Context, c *rig.Cluster, from, to string, options traffic.Options) (*traffic.Result, error) {
	address, err := c.RunKubectl(ctx, "get", "pod", to, "--output", "jsonpath={.status.podIP}")
	if err != nil {
		return nil, err
	}
	out, err := c.RunKubectl(ctx, "exec", from, "--", "/traffic", "run", net.JoinHostPort(address, "5001"), "--json", "--verify",
		"--direction", string(options.Direction), "--duration", options.Duration.String(), "--warmup", options.Warmup.String())
	if err != nil {
		return nil, err
	}
	var result traffic.Result
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		return nil, fmt.Errorf("reading what the pod's transfer says: %w", err)
	}
	return &result, nil
}
