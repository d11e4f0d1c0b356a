// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// Calico is Calico with vxlanMode Always.
	Calico ClusterNetwork = "calico"
	// CalicoCrossSubnet has vxlanMode CrossSubnet, and nodes in two racks: it encapsulates
	// between their subnets alone.
	CalicoCrossSubnet ClusterNetwork = "calico-cross-subnet"
	// CalicoNative has vxlanMode Never, and routes of felix in the place of BGP's.
	CalicoNative ClusterNetwork = "calico-native"
	// CalicoBGP has vxlanMode Never, nodes in two racks, and routes of Calico's BIRD: the nodes
	// are a full mesh, and the first path's router is a peer too.
	CalicoBGP ClusterNetwork = "calico-bgp"
)

var calicoModes = map[ClusterNetwork]string{Calico: "Always", CalicoCrossSubnet: "CrossSubnet", CalicoNative: "Never", CalicoBGP: "Never"}

// calicoVariable names a directory with the programs of a Calico release, and with the
// CRDs of its manifests.
const calicoVariable = "CALICO"

var calicoFiles = []string{"calico-node", "calico", "crds.yaml"}

// calicoOwn are the directories of the machine that each node has for itself.
var calicoOwn = []string{"/var/lib/calico", "/run/calico", "/var/log/calico"}

// Racks are how many there are of a cluster with this network: all nodes are in one, unless the
// network has it otherwise between subnets.
func (n ClusterNetwork) Racks() int {
	if n == CalicoCrossSubnet || n == CalicoBGP {
		return 2
	}
	return 0
}

// calico is whether the lab's nodes run Calico.
func (l *Lab) calico() bool { return calicoModes[l.options.ClusterNetwork] != "" }

func calicoFile(name string) string { return filepath.Join(os.Getenv(calicoVariable), name) }

// findCalico makes sure that the programs are there.
func (l *Lab) findCalico() error {
	if !l.calico() {
		return nil
	}
	if os.Getenv(calicoVariable) == "" {
		return fmt.Errorf("%s must name a directory with these files of a Calico release: %v", calicoVariable, calicoFiles)
	}
	files := calicoFiles
	if l.bgp() {
		files = append(slices.Clone(files), bgpFiles...)
	}
	for _, name := range files {
		if _, err := os.Stat(calicoFile(name)); err != nil {
			return fmt.Errorf("%s must name a directory with %v: %w", calicoVariable, files, err)
		}
	}
	return nil
}

// defineCalico gives the API server what Calico keeps there.
func (l *Lab) defineCalico(ctx context.Context) error {
	if !l.calico() {
		return nil
	}
	kubectl, err := Kubectl()
	if err != nil {
		return err
	}
	for _, arguments := range [][]string{
		{"apply", "--server-side", "--filename", calicoFile("crds.yaml")},
		{"wait", "--for=condition=Established", "--timeout=60s", "--filename", calicoFile("crds.yaml")},
	} {
		command := exec.CommandContext(ctx, kubectl, append([]string{"--kubeconfig", l.Server.KubeconfigPath()}, arguments...)...)
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("defining Calico's objects: %w: %s", err, out)
		}
	}
	return l.startRouter(ctx, kubectl)
}

// startCalico starts on the node what the container of calico-node does, in the same
// order, and waits until felix has written its rules.
func (k *kubeNode) startCalico(ctx context.Context) error {
	for _, arguments := range [][]string{{"-startup"}, {"-allocate-tunnel-addrs", "-allocate-tunnel-addrs-run-once"}} {
		if err := k.eventuallyCalico(ctx, []*Process{k.containerd}, arguments...); err != nil {
			return err
		}
	}
	felix, err := k.inside("felix", "env", k.calicoNode("-felix")...)
	if err != nil {
		return err
	}
	services, err := k.inside("calico-services", "env", k.calicoNode("-node-services")...)
	if err != nil {
		return err
	}
	if err := k.eventuallyCalico(ctx, []*Process{felix, services}, "-felix-ready"); err != nil {
		return err
	}
	if err := k.startBIRD(ctx); err != nil {
		return err
	}
	if err := k.linkCalico(); err != nil {
		return err
	}
	return k.writeJSON("cni/10-calico.conflist", k.calicoNetwork())
}

// eventuallyCalico runs a command of calico-node until it succeeds.
func (k *kubeNode) eventuallyCalico(ctx context.Context, processes []*Process, arguments ...string) error {
	return eventually(ctx, processes, func(ctx context.Context) error {
		all := append(append(k.enter(), "env"), k.calicoNode(arguments...)...)
		if out, err := exec.CommandContext(ctx, all[0], all[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("calico-node %v on %s: %w: %s", arguments, k.name(), err, out)
		}
		return nil
	})
}

// calicoNode is a command of calico-node with the environment of its DaemonSet. What begins
// with FELIX_ in the caller's own environment, felix gets too.
func (k *kubeNode) calicoNode(arguments ...string) []string {
	routes, backend := "Disabled", "vxlan"
	switch k.lab.options.ClusterNetwork {
	case CalicoNative:
		routes = "Enabled"
	case CalicoBGP:
		backend = "bird"
	}
	return append([]string{
		// As kube-proxy here; felix would find that out by itself, and end to be started again.
		"FELIX_NFTABLESMODE=" + cmp.Or(os.Getenv("FELIX_NFTABLESMODE"), "Enabled"),
		"DATASTORE_TYPE=kubernetes", "KUBECONFIG=" + k.lab.Server.KubeconfigPath(), "NODENAME=" + k.name(), "WAIT_FOR_DATASTORE=true",
		"CALICO_NETWORKING_BACKEND=" + backend, "CLUSTER_TYPE=k8s", "CALICO_MANAGE_CNI=false", "CALICO_DISABLE_FILE_LOGGING=true",
		"IP=autodetect", "IP_AUTODETECTION_METHOD=interface=" + k.lab.options.Network.Paths[0],
		"CALICO_IPV4POOL_CIDR=" + flannelIPv4, "CALICO_IPV4POOL_IPIP=Never", "CALICO_IPV4POOL_VXLAN=" + calicoModes[k.lab.options.ClusterNetwork],
		"FELIX_FELIXHOSTNAME=" + k.name(), "FELIX_MTUIFACEPATTERN=" + strings.Join(k.lab.options.Network.Paths, "|"),
		"FELIX_DEFAULTENDPOINTTOHOSTACTION=ACCEPT", "FELIX_IPV6SUPPORT=false", "FELIX_HEALTHENABLED=true", "FELIX_PROGRAMCLUSTERROUTES=" + routes,
		calicoFile("calico-node"),
	}, arguments...)
}

// linkCalico gives the node Calico's CNI plugins, which know by their names what they are.
func (k *kubeNode) linkCalico() error {
	program, err := filepath.Abs(calicoFile("calico"))
	if err != nil {
		return fmt.Errorf("finding Calico's CNI plugin: %w", err)
	}
	for _, name := range []string{"calico", "calico-ipam"} {
		if err := os.Symlink(program, k.path("cni-plugins", name)); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("giving %s Calico's CNI plugins: %w", k.name(), err)
		}
	}
	return nil
}

// calicoNetwork is what Calico's manifests write.
func (k *kubeNode) calicoNetwork() object {
	return object{"cniVersion": "0.3.1", "name": "k8s-pod-network", "plugins": []object{{
		"type": "calico", "log_level": "info", "datastore_type": "kubernetes", "nodename": k.name(), "mtu": 0,
		"ipam": object{"type": "calico-ipam"}, "policy": object{"type": "k8s"},
		"kubernetes": object{"kubeconfig": k.lab.Server.KubeconfigPath()},
	}}}
}
