// SPDX-License-Identifier: Apache-2.0

// Command braid-agent carries out its node's plan.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"braid.dev/braid/agent"
	"braid.dev/braid/agent/health"
	"braid.dev/braid/agent/identity"
	"braid.dev/braid/agent/inspect"
	"braid.dev/braid/agent/pins"
	"braid.dev/braid/agent/sandbox"
	"braid.dev/braid/agent/saved"
	"braid.dev/braid/agent/spreading"
	"braid.dev/braid/internal/buildinfo"
)

// version is set by the linker; without it the build's own version is used.
var version string

func main() {
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "braid-agent:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	options := agent.Options{Version: buildinfo.Version(version)}
	var logging zap.Options
	var kubeconfig string
	command := &cobra.Command{
		Use:           "braid-agent",
		Short:         "Carries out the node's plan: attaches the datapath to its NICs and manages its pods' subflows",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       options.Version,
		RunE: func(*cobra.Command, []string) error {
			options.Log = zap.New(zap.UseFlagOptions(&logging))
			return run(kubeconfig, options)
		},
	}
	addFlags(command, &options)
	addLogLevel(command, &logging)
	command.Flags().StringVar(&kubeconfig, "kubeconfig", "", "file that says how to reach the API server, with the account that all agents share (default: the pod's service account)")
	command.AddCommand(cleanupCommand(&options), mountCommand(), surveyCommand(), transferCommand())
	addInspection(command, &options)
	return command
}

func addFlags(command *cobra.Command, options *agent.Options) {
	flags := command.PersistentFlags()
	flags.StringVar(&options.NodeName, "node-name", os.Getenv("NODE_NAME"), "name of this agent's Node ($NODE_NAME)")
	flags.StringVar(&options.Namespace, "namespace", "braid-system", "namespace of the agent's Lease")
	flags.StringVar(&options.PinPath, "pin-path", pins.DefaultPath, "directory on a BPF file system for programs and maps")
	flags.StringVar(&options.StatePath, "state-path", inspect.DefaultStatePath, "directory for what must be known after a restart")
	flags.StringVar(&options.SavedPath, "saved-path", saved.DefaultPath, "directory on a disk for what the API server said last, to start from while it cannot be reached; empty to keep nothing")
	flags.StringSliceVar(&options.NamespaceDirectories, "netns-dirs", []string{"/run/netns", "/var/run/netns"}, "directories where network namespaces of pods are mounted")
	flags.StringVar(&options.ProcPath, "proc-path", "/proc", "where a proc file system with all processes of the machine is mounted; in a container, the host's")
	flags.StringVar(&options.CgroupPath, "cgroup-path", "/sys/fs/cgroup", "where the machine's cgroup file systems are mounted; in a container, the host's")
	flags.StringVar(&options.ProgramDirectory, "program-path", "", "directory, which root alone may write to, of programs as files; without it the agent takes none from files")
	flags.StringVar(&options.GuestAgentDirectory, "guest-agent-path", "", "directory below which QEMU has the sockets of guests' agents, or libvirt its own; without it the agent uses none")
	flags.StringVar(&options.PodsDirectory, "pods-path", "", "kubelet's directory of pods, in which KubeVirt's have the sockets of their libvirts; without it the agent uses none")
	flags.DurationVar(&options.SpreadingInterval, "spreading-interval", spreading.Interval, "time between two looks at what each pod's traffic does, which its status tells")
	flags.BoolVar(&options.ShareSmallWindows, "share-small-windows", true, "have the subflows of connections whose receivers' windows or send buffers are too small for paths that differ leave by the best path")
	flags.StringVar(&options.XDP, "xdp", agent.XDPOff, "Native has rules that only drop act at the XDP hook of the paths' NICs, where their drivers run programs; Off nowhere")
	flags.Uint16Var(&options.HealthPort, "path-health-port", health.DefaultPort, "UDP port, the same on every node, on which agents answer each other's probes of the paths")
	flags.StringVar(&options.MetricsAddress, "metrics-bind-address", "0", "address to serve metrics on, by HTTPS and to those whom the API server allows to get /metrics; 0 serves none")
	flags.StringVar(&options.MetricsCertDir, "metrics-cert-dir", "", "directory with tls.crt and tls.key for metrics (default: a certificate that the agent makes)")
	flags.StringVar(&options.ProbeAddress, "health-probe-bind-address", "0", "address to serve health probes on; 0 serves none")
}

// addLogLevel takes over one of the library's flags.
func addLogLevel(command *cobra.Command, logging *zap.Options) {
	all := flag.NewFlagSet("", flag.ContinueOnError)
	logging.BindFlags(all)
	level := *all.Lookup("zap-log-level")
	level.Name, level.Usage = "log-level", "error, info, or 1 and more to see more: 1 logs what rules report (default info)"
	command.Flags().AddGoFlag(&level)
}

// mountCommand is for an init container on hosts that mount none themselves.
func mountCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "mount-bpf",
		Short: "Mounts a BPF file system at /sys/fs/bpf, unless there is one",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return pins.Mount("/sys/fs/bpf") },
	}
}

func run(kubeconfig string, options agent.Options) error {
	if options.XDP != agent.XDPOff && options.XDP != agent.XDPNative {
		return fmt.Errorf("--xdp is %s or %s, not %q", agent.XDPOff, agent.XDPNative, options.XDP)
	}
	if options.NodeName == "" {
		return fmt.Errorf("--node-name is needed: the name of the Node that this agent runs on")
	}
	if err := limitHeap(); err != nil {
		return err
	}
	// What follows needs no other program, mount or module.
	if err := sandbox.Enter(); err != nil {
		return err
	}
	ctrl.SetLogger(options.Log)
	if kubeconfig != "" {
		if err := os.Setenv("KUBECONFIG", kubeconfig); err != nil {
			return err
		}
	}
	restConfig, err := config.GetConfig()
	if err != nil {
		return fmt.Errorf("finding the API server: %w", err)
	}
	ctx := ctrl.SetupSignalHandler()
	if restConfig, err = identity.Config(ctx, restConfig, options.Namespace, options.NodeName, options.Log.WithName("identity")); err != nil {
		return err
	}
	return agent.Run(ctx, restConfig, options)
}
