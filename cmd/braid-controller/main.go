// SPDX-License-Identifier: Apache-2.0

// Command braid-controller compiles policies into node plans and gathers status.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/controllers"
	"braid.dev/braid/internal/buildinfo"
	braidmetrics "braid.dev/braid/internal/metricsserver"
)

// version is set by the linker: -ldflags "-X main.version=v1.2.3".
var version string

// metricsSocket gives the metrics to who is in the pod: braid-controller metrics.
const metricsSocket = "@braid-controller-metrics"

type flags struct {
	namespace      string
	metricsAddress string
	metricsCertDir string
	healthAddress  string
	leaderElection bool
	podRanges      prefixes
	verbosity      int
	showVersion    bool
}

func parseFlags() *flags {
	f := &flags{}
	flag.StringVar(&f.namespace, "namespace", controllers.DefaultNamespace, "Namespace of the Leases of the agents and of the leader.")
	flag.StringVar(&f.metricsAddress, "metrics-bind-address", "0", "Address that serves metrics by HTTPS, to those whom the API server allows to get /metrics, such as :9478; 0 turns them off.")
	flag.StringVar(&f.metricsCertDir, "metrics-cert-dir", "", "Directory with tls.crt and tls.key for metrics; empty for a certificate that the controller makes.")
	flag.StringVar(&f.healthAddress, "health-probe-bind-address", ":8081", "Address that serves /healthz and /readyz; 0 turns them off.")
	flag.BoolVar(&f.leaderElection, "leader-elect", true, "Elect a leader, so that of several controllers one works at a time.")
	flag.Var(&f.podRanges, "pod-ranges", "Ranges, with commas between them, of which pods have all addresses, where the cluster network goes by its own and not by the Nodes' podCIDRs; for natively routed pods on Routed paths.")
	flag.BoolVar(&f.showVersion, "version", false, "Print the version and exit.")
	flag.IntVar(&f.verbosity, "verbosity", 0, "How much to log: 0 what an admin should know, 1 each write, up to 9.")
	flag.Parse()
	return f
}

// prefixes are a flag's.
type prefixes []netip.Prefix

func (p *prefixes) String() string { return fmt.Sprint(*p) }

// Set takes nothing for no ranges.
func (p *prefixes) Set(text string) error {
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' }) {
		prefix, err := netip.ParsePrefix(word)
		if err != nil {
			return fmt.Errorf("range of addresses: %w", err)
		}
		*p = append(*p, prefix.Masked())
	}
	return nil
}

func main() {
	f := parseFlags()
	if f.showVersion {
		fmt.Println("braid-controller", buildinfo.Version(version))
		return
	}
	if flag.Arg(0) == "metrics" {
		if err := braidmetrics.Fetch(context.Background(), metricsSocket, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	setLogger(f.verbosity)
	if err := run(ctrl.SetupSignalHandler(), f); err != nil {
		ctrl.Log.Error(err, "Failed to run the controller")
		os.Exit(1)
	}
}

// setLogger logs to standard error, our own messages and those of the libraries.
func setLogger(verbosity int) {
	options := &slog.HandlerOptions{Level: slog.Level(-verbosity)} // as logr counts its levels
	logger := logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, options))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
}

func run(ctx context.Context, f *flags) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server (see --kubeconfig): %w", err)
	}
	mgr, err := newManager(config, f)
	if err != nil {
		return err
	}
	ctrl.Log.Info("Starting braid-controller", "version", buildinfo.Version(version), "namespace", f.namespace)
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the manager: %w", err)
	}
	return nil
}

func newManager(config *rest.Config, f *flags) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                  scheme,
		Cache:                   controllers.CacheOptions(f.namespace),
		Controller:              controllers.ControllerConfig(),
		Metrics:                 metricsserver.Options{BindAddress: "0"}, // see internal/metricsserver
		HealthProbeBindAddress:  f.healthAddress,
		LeaderElection:          f.leaderElection,
		LeaderElectionID:        controllers.LeaderElectionID,
		LeaderElectionNamespace: f.namespace,
		// The process ends when the manager does, so the next leader need not wait.
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	if err := addMetrics(mgr, f); err != nil {
		return nil, fmt.Errorf("add the metrics: %w", err)
	}
	if err := controllers.Setup(mgr, controllers.Options{Namespace: f.namespace, PodRanges: f.podRanges}); err != nil {
		return nil, err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, fmt.Errorf("add the health check: %w", err)
	}
	if err := mgr.AddReadyzCheck("ping", healthz.Ping); err != nil {
		return nil, fmt.Errorf("add the readiness check: %w", err)
	}
	return mgr, nil
}

func addMetrics(mgr ctrl.Manager, f *flags) error {
	server, err := braidmetrics.For(mgr, braidmetrics.Options{
		Address: f.metricsAddress, CertDir: f.metricsCertDir, Socket: metricsSocket, Log: ctrl.Log.WithName("metrics"),
	})
	if err != nil {
		return err
	}
	return mgr.Add(server)
}
