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
	"strings"

	"braid.dev/braid/internal/lab/network"
)

// A node with a kubelet is its network namespace, a mount namespace with its own
// /run and BPF file system, and its own part of each cgroup tree: what pods get
// from the node by hostPath is the node's own.

// node is what runs on a node.
type kubeNode struct {
	lab        *Lab
	node       *network.Node
	containerd *Process
}

func (k *kubeNode) name() string { return k.node.NodeName() }

func (k *kubeNode) path(elements ...string) string {
	return k.lab.path(append([]string{"nodes", k.name()}, elements...)...)
}

func (k *kubeNode) socket() string { return k.path("containerd.sock") }

// cgroup is the node's part of the cgroup trees.
func (k *kubeNode) cgroup() string { return "/" + cgroupOf(k.lab.Name) + "/" + k.name() }

// start starts containerd, gives it the images, and starts kubelet and kube-proxy.
func (k *kubeNode) start(ctx context.Context, images []string) error {
	if err := errors.Join(k.writeFiles(), makeCgroup(k.cgroup())); err != nil {
		return err
	}
	if err := k.startContainerd(ctx); err != nil {
		return err
	}
	for _, image := range images {
		// A containerd that has answered once may still close its socket and open it
		// again while its plugins start.
		err := eventually(ctx, []*Process{k.containerd}, func(ctx context.Context) error { return k.importImage(ctx, image) })
		if err != nil {
			return err
		}
	}
	if err := k.startKubelet(ctx); err != nil {
		return err
	}
	if mode, _ := k.lab.ciliumMode(); mode.replacement {
		return nil
	}
	_, err := k.inside("kube-proxy", k.lab.clusterBinary("kube-proxy"), "--config="+k.path("proxy.json"))
	return err
}

// PodsOfKubelet is kubelet's directory of pods in a node's mount namespace, beside kubelet's own
// name for it.
const PodsOfKubelet = "/run/braid/pods-of-kubelet"

// prepare runs in the node's new mount namespace before containerd does: mounts
// that pods make reach the node, and none of them the machine.
const prepare = `
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$1/netns"
mount --rbind "$1/netns" /run/netns
mount -t bpf bpf /sys/fs/bpf
mkdir -p /run/braid "$1/run-braid" /var/lib/braid "$1/saved"
mount --bind "$1/run-braid" /run/braid
mount --bind "$1/saved" /var/lib/braid
for own in ${OWN:-}; do
	mkdir -p "$own" "$1/own$own"
	mount --bind "$1/own$own" "$own"
done
mount --make-rshared /
# At each node where the chart can name it: it has one value for all.
mkdir -p "$1/kubelet/pods" ` + PodsOfKubelet + `
mount --rbind "$1/kubelet/pods" ` + PodsOfKubelet + `
shift
exec "$@"
`

func (k *kubeNode) startContainerd(ctx context.Context) (err error) {
	command := exec.Command("nsenter", "--net="+k.node.Path(), "unshare", "--mount", "sh", "-c", prepare, "prepare", k.path(),
		k.lab.clusterBinary("containerd"), "--config", k.path("containerd.toml"))
	directories := filepath.Dir(k.lab.clusterBinary("containerd")) + ":" + os.Getenv("PATH") + ":/usr/sbin:/sbin"
	k.containerd, err = k.lab.start("containerd-"+k.name(), command, "PATH="+directories, "OWN="+strings.Join(k.ownDirectories(), " "))
	if err != nil {
		return err
	}
	return eventually(ctx, []*Process{k.containerd}, func(ctx context.Context) error {
		out, err := k.ctr(ctx, "version").CombinedOutput()
		if err != nil {
			return fmt.Errorf("waiting for containerd of %s: %w: %s", k.name(), err, out)
		}
		return nil
	})
}

// devicePlugins is where kubelet has a socket, whatever its --root-dir.
const devicePlugins = "/var/lib/kubelet/device-plugins"

// ownDirectories are those of the machine in whose place the node has its own.
func (k *kubeNode) ownDirectories() []string {
	own := []string{devicePlugins}
	if k.lab.calico() || k.lab.bgp() {
		own = append(own, calicoOwn...)
	}
	if k.lab.bgp() {
		own = append(own, confdDirectory)
	}
	return own
}

// inside starts a process in the node's namespaces.
func (k *kubeNode) inside(name, program string, arguments ...string) (*Process, error) {
	all := append(append(k.enter(), program), arguments...)
	return k.lab.start(name+"-"+k.name(), exec.Command(all[0], all[1:]...))
}

// enter is how a command line begins that runs in the node's namespaces.
func (k *kubeNode) enter() []string {
	return []string{"nsenter", fmt.Sprintf("--target=%d", k.containerd.Pid()), "--net", "--mount"}
}

func (k *kubeNode) ctr(ctx context.Context, arguments ...string) *exec.Cmd {
	return exec.CommandContext(ctx, k.lab.clusterBinary("ctr"), append([]string{"--address", k.socket(), "--namespace", "k8s.io"}, arguments...)...)
}

func (k *kubeNode) importImage(ctx context.Context, archive string) error {
	if out, err := k.ctr(ctx, "images", "import", archive).CombinedOutput(); err != nil {
		return fmt.Errorf("importing %s on %s: %w: %s", filepath.Base(archive), k.name(), err, out)
	}
	return nil
}

func (k *kubeNode) startKubelet(ctx context.Context) error {
	kubelet, err := k.inside("kubelet", k.lab.clusterBinary("kubelet"),
		"--config="+k.path("kubelet.json"), "--kubeconfig="+k.lab.Server.KubeconfigPath(),
		"--root-dir="+k.path("kubelet"), "--cert-dir="+k.path("pki"),
		"--hostname-override="+k.name(), "--node-ip="+k.nodeIPs())
	if err != nil {
		return err
	}
	patience := startPatience
	if k.lab.flannel() {
		if err := k.startFlannel(ctx); err != nil {
			return err
		}
	}
	if k.lab.calico() {
		if err := k.startCalico(ctx); err != nil {
			return err
		}
	}
	if _, cilium := k.lab.ciliumMode(); cilium {
		if err := k.startCilium(ctx); err != nil {
			return err
		}
		patience = ciliumPatience
	}
	return eventuallyWithin(ctx, patience, []*Process{kubelet, k.containerd}, func(ctx context.Context) error { return k.lab.nodeReady(ctx, k.name()) })
}

// nodeIPs are the node's addresses: one is enough for all but Cilium, which needs one for
// each IP version of the pods.
func (k *kubeNode) nodeIPs() string {
	versions := k.lab.Network.Versions()
	if _, cilium := k.lab.ciliumMode(); !cilium {
		versions = versions[:1]
	}
	var addresses []string
	for _, version := range versions {
		addresses = append(addresses, k.node.Address(0, version))
	}
	return strings.Join(addresses, ",")
}

// writeFiles writes the configurations of everything on the node.
func (k *kubeNode) writeFiles() error {
	for _, directory := range []string{"cni", "cni-plugins", "netns", "run-braid", "kubelet", "pki", "logs"} {
		if err := os.MkdirAll(k.path(directory), 0o755); err != nil {
			return fmt.Errorf("making the directories of %s: %w", k.name(), err)
		}
	}
	files := map[string]any{
		"kubelet.json": k.kubeletConfig(), "proxy.json": k.proxyConfig(), "cni/10-lab.conflist": k.networkConfig(),
	}
	if k.lab.flannel() {
		delete(files, "cni/10-lab.conflist")
		files["flannel.json"] = k.lab.flannelConfig()
	}
	if _, cilium := k.lab.ciliumMode(); cilium || k.lab.calico() {
		delete(files, "cni/10-lab.conflist")
	}
	for name, content := range files {
		if err := k.writeJSON(name, content); err != nil {
			return err
		}
	}
	if err := os.WriteFile(k.path("containerd.toml"), []byte(k.containerdConfig()), 0o600); err != nil {
		return fmt.Errorf("writing containerd.toml of %s: %w", k.name(), err)
	}
	return nil
}

type object = map[string]any

// containerdConfig: restrict_oom_score_adj is for machines whose root lacks
// CAP_SYS_RESOURCE. NRI has a socket in the machine's /var/run, which nodes that
// start at the same time take from each other.
func (k *kubeNode) containerdConfig() string {
	return strings.NewReplacer("ROOT", k.path("containerd"), "SOCKET", k.socket(), "CNI", k.path("cni"), "PLUGINS", strings.Join(k.plugins(), `", "`), "PAUSE", pauseImage).Replace(`
version = 3
root = "ROOT/root"
state = "ROOT/state"
[grpc]
  address = "SOCKET"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "native"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "PAUSE"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["PLUGINS"]
    conf_dir = "CNI"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
[plugins."io.containerd.nri.v1.nri"]
  disable = true
`)
}

// plugins are the directories of CNI plugins.
func (k *kubeNode) plugins() []string {
	directories := []string{"/usr/lib/cni", k.path("cni-plugins")}
	if _, cilium := k.lab.ciliumMode(); cilium {
		directories = append(directories, k.lab.ciliumBinary(""))
	}
	return directories
}

func (k *kubeNode) kubeletConfig() object {
	return object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"authentication": object{"anonymous": object{"enabled": true}, "webhook": object{"enabled": false}},
		"authorization":  object{"mode": "AlwaysAllow"},
		"cgroupDriver":   "cgroupfs", "cgroupRoot": k.cgroup(), "failCgroupV1": false,
		"containerRuntimeEndpoint":                  "unix://" + k.socket(),
		"enforceNodeAllocatable":                    []string{},
		"evictionHard":                              object{"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"},
		"failSwapOn":                                false,
		"imageGCHighThresholdPercent":               100,
		"localStorageCapacityIsolation":             false,
		"podLogsDir":                                k.path("logs"),
		"resolvConf":                                "",
		"readOnlyPort":                              0,
		"volumePluginDir":                           k.path("kubelet", "plugins"),
		"protectKernelDefaults":                     false,
		"makeIPTablesUtilChains":                    false,
		"nodeStatusUpdateFrequency":                 "2s",
		"nodeStatusReportFrequency":                 "1m",
		"shutdownGracePeriod":                       "0s",
		"serializeImagePulls":                       false,
		"allowedUnsafeSysctls":                      []string{"net.*"},
		"volumeStatsAggPeriod":                      "-1s",
		"eventRecordQPS":                            0,
		"kubeAPIQPS":                                200,
		"kubeAPIBurst":                              400,
		"maxPods":                                   250,
		"cpuManagerReconcilePeriod":                 "10s",
		"configMapAndSecretChangeDetectionStrategy": "Watch",
	}
}

// proxyVariable names another mode of kube-proxy.
const proxyVariable = "KUBE_PROXY_MODE"

func (k *kubeNode) proxyConfig() object {
	return object{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode": cmp.Or(os.Getenv(proxyVariable), "nftables"), "clusterCIDR": "10.244.0.0/16", "hostnameOverride": k.name(),
		"clientConnection":   object{"kubeconfig": k.lab.Server.KubeconfigPath()},
		"conntrack":          object{"maxPerCore": 0, "min": 0},
		"healthzBindAddress": "127.0.0.1:10256", "metricsBindAddress": "127.0.0.1:10249",
		"nodePortAddresses": []string{"primary"},
	}
}

// networkConfig is a natively routed cluster network: the routes to the other
// nodes' pods are there already.
func (k *kubeNode) networkConfig() object {
	return object{"cniVersion": "1.0.0", "name": "lab", "plugins": []object{{"type": "ptp", "ipMasq": false, "ipam": k.addresses("0.0.0.0/0", "::/0")}}}
}

// addresses is how pods get theirs, and a route of each IP version.
func (k *kubeNode) addresses(ipv4, ipv6 string) object {
	var ranges, routes []any
	for _, version := range k.lab.Network.Versions() {
		ranges = append(ranges, []object{{"subnet": k.node.PodCIDR(version)}})
		routes = append(routes, object{"dst": map[int]string{4: ipv4, 6: ipv6}[version]})
	}
	return object{"type": "host-local", "dataDir": k.path("cni-data"), "ranges": ranges, "routes": routes}
}
