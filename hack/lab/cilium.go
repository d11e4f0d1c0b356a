// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Cilium's agent and CNI plugin, without what needs Envoy or Hubble.
const (
	// Cilium has VXLAN, and leaves Services to kube-proxy.
	Cilium ClusterNetwork = "cilium"
	// CiliumNative routes pods' packets as they are.
	CiliumNative ClusterNetwork = "cilium-native"
	// CiliumReplacement has VXLAN, does what kube-proxy does, masquerades by BPF and
	// passes by the hosts' stacks.
	CiliumReplacement ClusterNetwork = "cilium-replacement"
	// CiliumNativeReplacement is the same with pods' packets as they are.
	CiliumNativeReplacement ClusterNetwork = "cilium-native-replacement"
)

type ciliumMode struct{ native, replacement bool }

var ciliumModes = map[ClusterNetwork]ciliumMode{
	Cilium: {}, CiliumNative: {native: true},
	CiliumReplacement: {replacement: true}, CiliumNativeReplacement: {native: true, replacement: true},
}

// ciliumMode is that of the lab's nodes, if they run Cilium.
func (l *Lab) ciliumMode() (mode ciliumMode, cilium bool) {
	mode, cilium = ciliumModes[l.options.ClusterNetwork]
	return mode, cilium
}

// fetchCilium makes sure that Cilium is there; the first time that takes minutes.
func (l *Lab) fetchCilium(ctx context.Context) error {
	if _, cilium := l.ciliumMode(); !cilium {
		return nil
	}
	out, err := runBuildScript(ctx, "cluster/cilium.sh")
	if err != nil {
		return fmt.Errorf("getting Cilium: %w", err)
	}
	l.cilium = strings.TrimSpace(out)
	return nil
}

func (l *Lab) ciliumBinary(name string) string { return filepath.Join(l.cilium, "bin", name) }

// ciliumSettings are those that the agent and the operator share.
func (l *Lab) ciliumSettings() map[string]string {
	return map[string]string{
		"k8s-kubeconfig-path": l.Server.KubeconfigPath(), "identity-allocation-mode": "crd", "ipam": "kubernetes",
		"enable-ipv4": l.hasVersion(4), "enable-ipv6": l.hasVersion(6), "enable-gops": "false",
	}
}

// hasVersion is "true" where pods have addresses of this IP version.
func (l *Lab) hasVersion(version int) string {
	return fmt.Sprint(slices.Contains(l.Network.Versions(), version))
}

// startCiliumOperator starts what defines Cilium's kinds of objects; agents wait for it.
func (l *Lab) startCiliumOperator() error {
	if _, cilium := l.ciliumMode(); !cilium {
		return nil
	}
	settings := l.ciliumSettings()
	maps.Copy(settings, map[string]string{"operator-api-serve-addr": "127.0.0.1:0", "enable-metrics": "false"})
	command := exec.Command(l.ciliumBinary("cilium-operator-generic"), asFlags(settings)...)
	_, err := l.start("cilium-operator", command, "CILIUM_K8S_NAMESPACE=kube-system", "K8S_NODE_NAME="+l.Network.Nodes[0].NodeName())
	return err
}

// asFlags gives settings as a command line has them.
func asFlags(settings map[string]string) (flags []string) {
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		flags = append(flags, "--"+name+"="+settings[name])
	}
	return flags
}

// runCilium starts the agent. The node's directory and its part of the cgroup tree are
// where the agent and the CNI plugin look for theirs; what it would set of the machine's
// kernel it sets in a file.
const runCilium = `
set -eu
mkdir -p /run/cilium
mount --bind "$1/run-cilium" /run/cilium
mkdir -p /run/cilium/cgroupv2
mount --bind "$2" /run/cilium/cgroupv2
shift 2
exec unshare --mount --propagation slave sh -c '
for setting in kernel/unprivileged_bpf_disabled kernel/timer_migration; do
	: >"$1"
	mount --bind "$1" /proc/sys/$setting
done
shift
exec "$@"' agent "$@"
`

// startCilium gives the node its range and starts the agent, which writes the CNI
// plugin's configuration once pods can be made. With temporary files on another mount it
// does so in a way that containerd notices: it watches for files that are renamed, but not
// for those that come from elsewhere.
func (k *kubeNode) startCilium(ctx context.Context) error {
	if err := errors.Join(k.giveRanges(ctx), os.MkdirAll(k.path("run-cilium"), 0o755)); err != nil {
		return err
	}
	directories := "PATH=" + filepath.Dir(k.lab.ciliumBinary("clang")) + ":" + os.Getenv("PATH") + ":/usr/sbin:/sbin"
	arguments := append([]string{
		"-c", runCilium, "cilium", k.path(), cgroup2(k.cgroup()), k.path("setting"),
		"env", "K8S_NODE_NAME=" + k.name(), "CILIUM_K8S_NAMESPACE=kube-system", "TMPDIR=/run/cilium", directories, k.lab.ciliumBinary("cilium-agent"),
	}, asFlags(k.ciliumAgentSettings())...)
	agent, err := k.inside("cilium", "sh", arguments...)
	if err != nil {
		return err
	}
	return eventuallyWithin(ctx, ciliumPatience, []*Process{agent}, func(context.Context) error {
		_, err := os.Stat(k.path("cni", ciliumConfiguration))
		return err
	})
}

// ciliumPatience is for agents that compile their programs, all at the same time.
const ciliumPatience = 5 * time.Minute

// ciliumConfiguration is what the agent writes for the CNI plugin.
const ciliumConfiguration = "05-cilium.conflist"

// cgroup2 is where a group is in the tree of cgroup v2.
func cgroup2(group string) string {
	if _, v2 := cgroupTrees(); v2 {
		return filepath.Join(cgroupRoot, group)
	}
	return filepath.Join(cgroupRoot, "unified", group)
}

func (k *kubeNode) ciliumAgentSettings() map[string]string {
	mode, _ := k.lab.ciliumMode()
	paths := k.lab.options.Network.Paths
	settings := k.lab.ciliumSettings()
	maps.Copy(settings, map[string]string{
		"lib-dir": k.lab.cilium, "cgroup-root": "/run/cilium/cgroupv2",
		"write-cni-conf-when-ready": k.path("cni", ciliumConfiguration), "cni-exclusive": "false",
		"cni-log-file": filepath.Join(k.lab.LogDirectory(), "cilium-cni-"+k.name()+".log"),
		"devices":      strings.Join(paths, ","), "direct-routing-device": paths[0],
		"routing-mode": "tunnel", "tunnel-protocol": "vxlan", "kube-proxy-replacement": fmt.Sprint(mode.replacement),
		"enable-bpf-masquerade": fmt.Sprint(mode.replacement), "enable-host-legacy-routing": fmt.Sprint(!mode.replacement),
		"enable-ipv4-masquerade": k.lab.hasVersion(4), "enable-ipv6-masquerade": k.lab.hasVersion(6),
		"enable-l7-proxy": "false", "enable-hubble": "false",
		"enable-health-checking": "false", "enable-endpoint-health-checking": "false",
		// Three nodes share the machine's memory.
		"bpf-ct-global-tcp-max": "65536", "bpf-ct-global-any-max": "32768", "bpf-nat-global-max": "65536",
	})
	if mode.native {
		maps.Copy(settings, map[string]string{
			"routing-mode": "native", "auto-direct-node-routes": "true",
			"ipv4-native-routing-cidr": flannelIPv4, "ipv6-native-routing-cidr": flannelIPv6,
		})
	}
	return settings
}
