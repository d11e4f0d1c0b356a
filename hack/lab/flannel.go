// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ClusterNetwork is who routes between the pods of a cluster with kubelets.
type ClusterNetwork string

const (
	// Native has the lab's own routes, and pods by the CNI plugin ptp.
	Native ClusterNetwork = "native"
	// Flannel is flanneld with its backend VXLAN, and pods on a bridge.
	Flannel ClusterNetwork = "flannel"
	// FlannelHostGW is flanneld with its backend host-gw.
	FlannelHostGW ClusterNetwork = "flannel-host-gw"
)

// The ranges of all pods' addresses.
const flannelIPv4, flannelIPv6 = "10.244.0.0/16", "fd00:244::/32"

var flannelBackends = map[ClusterNetwork]string{Flannel: "vxlan", FlannelHostGW: "host-gw"}

// ClusterNetworkNamed is the one with this name; native without a name.
func ClusterNetworkNamed(name string) (ClusterNetwork, error) {
	switch network := ClusterNetwork(name); network {
	case "":
		return Native, nil
	case Native, Flannel, FlannelHostGW, Calico, CalicoCrossSubnet, CalicoNative, CalicoBGP, Cilium, CiliumNative, CiliumReplacement, CiliumNativeReplacement:
		return network, nil
	}
	return "", fmt.Errorf("there is no cluster network %q: must be one of %v", name, []ClusterNetwork{
		Native, Flannel, FlannelHostGW, Calico, CalicoCrossSubnet, CalicoNative, CalicoBGP, Cilium, CiliumNative, CiliumReplacement, CiliumNativeReplacement,
	})
}

// flannel is whether the lab's nodes run flanneld.
func (l *Lab) flannel() bool { return flannelBackends[l.options.ClusterNetwork] != "" }

// fetchFlannel makes sure that flanneld is there; the first time that takes minutes.
func (l *Lab) fetchFlannel(ctx context.Context) error {
	if !l.flannel() {
		return nil
	}
	out, err := runBuildScript(ctx, "cluster/flannel.sh")
	if err != nil {
		return fmt.Errorf("getting flanneld: %w", err)
	}
	l.flanneld = strings.TrimSpace(out)
	return nil
}

// flannelConfig is that of the whole cluster: flannel's ranges are those of the nodes.
func (l *Lab) flannelConfig() object {
	config := object{"Backend": object{"Type": flannelBackends[l.options.ClusterNetwork]}, "EnableIPv4": false}
	for _, version := range l.Network.Versions() {
		if version == 4 {
			config["Network"], config["EnableIPv4"] = flannelIPv4, true
		} else {
			config["IPv6Network"], config["EnableIPv6"] = flannelIPv6, true
		}
	}
	return config
}

// startFlannel gives the node its range, starts flanneld, and waits until it has written
// what pods need. As kube-flannel's DaemonSet has it, it masquerades what leaves the
// cluster.
func (k *kubeNode) startFlannel(ctx context.Context) error {
	if err := k.giveRanges(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(k.path("flannel.env")); err != nil {
		return fmt.Errorf("forgetting what flanneld wrote on %s: %w", k.name(), err)
	}
	flanneld, err := k.inside("flanneld", "env", "NODE_NAME="+k.name(), k.lab.flanneld,
		"--kube-subnet-mgr", "--kubeconfig-file="+k.lab.Server.KubeconfigPath(), "--ip-masq",
		"--iface="+k.lab.options.Network.Paths[0], "--net-config-path="+k.path("flannel.json"), "--subnet-file="+k.path("flannel.env"))
	if err != nil {
		return err
	}
	var mtu int
	err = eventually(ctx, []*Process{flanneld}, func(context.Context) (err error) {
		mtu, err = flannelMTU(k.path("flannel.env"))
		return err
	})
	if err != nil {
		return err
	}
	return k.writeJSON("cni/10-flannel.conflist", k.flannelNetwork(mtu))
}

// giveRanges tells the API server which addresses the node's pods have, as the
// controller manager would.
func (k *kubeNode) giveRanges(ctx context.Context) error {
	return eventually(ctx, []*Process{k.containerd}, func(ctx context.Context) error {
		var node corev1.Node
		if err := k.lab.Client.Get(ctx, client.ObjectKey{Name: k.name()}, &node); err != nil {
			return fmt.Errorf("waiting for %s: %w", k.name(), err)
		}
		before := node.DeepCopy()
		node.Spec.PodCIDRs = nil
		for _, version := range k.lab.Network.Versions() {
			node.Spec.PodCIDRs = append(node.Spec.PodCIDRs, k.node.PodCIDR(version))
		}
		node.Spec.PodCIDR = node.Spec.PodCIDRs[0]
		if err := k.lab.Client.Patch(ctx, &node, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("giving %s its pods' addresses: %w", k.name(), err)
		}
		return nil
	})
}

var errNoMTU = errors.New("flanneld has not written the pods' MTU yet")

// flannelMTU reads the MTU of pods from what flanneld writes for its CNI plugin.
func flannelMTU(file string) (int, error) {
	content, err := os.Open(file)
	if err != nil {
		return 0, fmt.Errorf("waiting for flanneld: %w", err)
	}
	defer content.Close()
	lines := bufio.NewScanner(content)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "FLANNEL_MTU="); ok {
			return strconv.Atoi(text)
		}
	}
	return 0, errors.Join(errNoMTU, lines.Err())
}

// flannelNetwork is what flannel's own CNI plugin, which is not among the system's,
// hands on to the plugin bridge.
func (k *kubeNode) flannelNetwork(mtu int) object {
	return object{"cniVersion": "1.0.0", "name": "cbr0", "plugins": []object{{
		"type": "bridge", "bridge": "cni0", "mtu": mtu, "isGateway": true, "isDefaultGateway": true,
		"hairpinMode": true, "ipMasq": false, "ipam": k.addresses(flannelIPv4, flannelIPv6),
	}}}
}

// writeJSON writes a file of the node.
func (k *kubeNode) writeJSON(name string, content any) error {
	encoded, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding %s of %s: %w", filepath.Base(name), k.name(), err)
	}
	if err := os.WriteFile(k.path(name), encoded, 0o600); err != nil {
		return fmt.Errorf("writing %s of %s: %w", name, k.name(), err)
	}
	return nil
}
