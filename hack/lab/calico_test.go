// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"braid.dev/braid/internal/lab/apiserver"
	"braid.dev/braid/internal/lab/network"
)

func labOn(clusterNetwork ClusterNetwork) *Lab {
	return &Lab{
		Name: "unmade", Server: &apiserver.Server{}, Network: &network.Network{},
		options: Options{ClusterNetwork: clusterNetwork, Network: network.Spec{Paths: []string{"blue", "green"}}},
	}
}

func TestClusterNetworksAreKnownByTheirNames(t *testing.T) {
	for _, name := range []string{"", "native", "flannel", "flannel-host-gw", "calico", "calico-cross-subnet", "calico-native", "calico-bgp"} {
		if _, err := ClusterNetworkNamed(name); err != nil {
			t.Error(err)
		}
	}
	if _, err := ClusterNetworkNamed("calcio"); err == nil || !strings.Contains(err.Error(), "calico-cross-subnet") {
		t.Errorf("the error for an unknown name does not list the known ones: %v", err)
	}
}

func TestCalicosProgramsAreMissedBeforeAnythingIsMade(t *testing.T) {
	t.Setenv(calicoVariable, "")
	if err := labOn(Flannel).findCalico(); err != nil {
		t.Errorf("another network misses them: %v", err)
	}
	if err := labOn(Calico).findCalico(); err == nil {
		t.Error("nobody said where they are")
	}
	directory := t.TempDir()
	t.Setenv(calicoVariable, directory)
	for _, name := range calicoFiles {
		if err := labOn(Calico).findCalico(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is missing: %v", name, err)
		}
		if err := os.WriteFile(filepath.Join(directory, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := labOn(Calico).findCalico(); err != nil {
		t.Error(err)
	}
}

func TestCalicosModesAreThoseOfItsIPPools(t *testing.T) {
	for of, wanted := range map[ClusterNetwork][]string{
		Calico:            {"CALICO_IPV4POOL_VXLAN=Always", "FELIX_PROGRAMCLUSTERROUTES=Disabled"},
		CalicoCrossSubnet: {"CALICO_IPV4POOL_VXLAN=CrossSubnet", "FELIX_PROGRAMCLUSTERROUTES=Disabled"},
		CalicoNative:      {"CALICO_IPV4POOL_VXLAN=Never", "FELIX_PROGRAMCLUSTERROUTES=Enabled", "CALICO_NETWORKING_BACKEND=vxlan"},
		CalicoBGP:         {"CALICO_IPV4POOL_VXLAN=Never", "FELIX_PROGRAMCLUSTERROUTES=Disabled", "CALICO_NETWORKING_BACKEND=bird"},
	} {
		l := labOn(of)
		command := (&kubeNode{lab: l, node: &network.Node{}}).calicoNode("-felix")
		for _, one := range append(wanted, "IP_AUTODETECTION_METHOD=interface=blue", "FELIX_MTUIFACEPATTERN=blue|green", "FELIX_NFTABLESMODE=Enabled") {
			if !slices.Contains(command, one) {
				t.Errorf("%s: calico-node is not started with %s: %v", of, one, command)
			}
		}
		if command[len(command)-1] != "-felix" {
			t.Errorf("the command is %v", command)
		}
	}
}

func TestACallerChoosesFelixsDataPlane(t *testing.T) {
	t.Setenv("FELIX_NFTABLESMODE", "Disabled")
	command := (&kubeNode{lab: labOn(Calico), node: &network.Node{}}).calicoNode("-felix")
	if !slices.Contains(command, "FELIX_NFTABLESMODE=Disabled") {
		t.Errorf("calico-node is started with %v", command)
	}
}

func TestCalicosBGPNeedsItsBIRDToo(t *testing.T) {
	directory := t.TempDir()
	t.Setenv(calicoVariable, directory)
	for _, name := range append(slices.Clone(calicoFiles), bgpFiles...) {
		if err := labOn(CalicoBGP).findCalico(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is missing: %v", name, err)
		}
		if err := os.WriteFile(filepath.Join(directory, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := labOn(CalicoBGP).findCalico(); err != nil {
		t.Error(err)
	}
}

func TestCallersChooseTheModeOfKubeProxy(t *testing.T) {
	node := &kubeNode{lab: labOn(Flannel), node: &network.Node{}}
	if mode := node.proxyConfig()["mode"]; mode != "nftables" {
		t.Errorf("kube-proxy's mode is %v", mode)
	}
	t.Setenv(proxyVariable, "iptables")
	if mode := node.proxyConfig()["mode"]; mode != "iptables" {
		t.Errorf("kube-proxy's mode is %v", mode)
	}
}
