// SPDX-License-Identifier: Apache-2.0

// Command braid-proxy relays the plain TCP connections of those whom the agent of its node
// names.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"braid.dev/braid/internal/buildinfo"
	"braid.dev/braid/proxy"
)

// version is set by the linker; without it the build's own version is used.
var version string

func main() {
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "braid-proxy:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var options proxy.Options
	var logging zap.Options
	var directory string
	var grace time.Duration
	command := &cobra.Command{
		Use:           "braid-proxy",
		Short:         "Takes the plain TCP connections of the pods and guests that the node's agent names, and goes on by MPTCP",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       buildinfo.Version(version),
		RunE: func(*cobra.Command, []string) error {
			options.Log = zap.New(zap.UseFlagOptions(&logging))
			ctrl.SetLogger(options.Log)
			state, err := os.MkdirTemp("", "braid-proxy-")
			if err != nil {
				return fmt.Errorf("making a directory for notes: %w", err)
			}
			defer func() { _ = os.RemoveAll(state) }()
			options.StatePath = state
			return proxy.Serve(ctrl.SetupSignalHandler(), options, directory, grace)
		},
	}
	flags := command.Flags()
	flags.StringVar(&directory, "state-path", "/run/braid", "directory where the node's agent says whose connections to relay")
	flags.StringVar(&options.Proc, "proc-path", "/proc", "where a proc file system is mounted whose sys/net can be written; in a container, the host's")
	flags.DurationVar(&grace, "grace", 10*time.Minute, "how long connections go on after the signal to end; new ones are as without a proxy meanwhile")
	addLogLevel(command, &logging)
	return command
}

// addLogLevel takes over one of the library's flags.
func addLogLevel(command *cobra.Command, logging *zap.Options) {
	all := flag.NewFlagSet("", flag.ContinueOnError)
	logging.BindFlags(all)
	level := *all.Lookup("zap-log-level")
	level.Name, level.Usage = "log-level", "error, info, or 1 and more to see more: 1 logs which connections go on untouched, and why (default info)"
	command.Flags().AddGoFlag(&level)
}
