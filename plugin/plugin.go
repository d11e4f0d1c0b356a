// SPDX-License-Identifier: Apache-2.0

// Package plugin is `kubectl braid`: it tells whether Braid does what its policies
// say, and why each pod is treated as it is. It reads the API server; init creates what it
// proposes when told to, and test has two pods of its own for a while.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/output"
)

// ErrNotFine says that a command found something wrong, and has told it.
var ErrNotFine = errors.New("not everything is fine")

// plugin is what the commands have in common.
type plugin struct {
	flags *genericclioptions.ConfigFlags
	out   io.Writer
	// warnings is where a command says what does not belong to its output.
	warnings io.Writer
	format   output.Format
	clock    serverClock
	// systemNamespace is where Braid itself runs.
	systemNamespace string
}

// Command is `kubectl braid`, which writes to out.
func Command(out io.Writer, version string) *cobra.Command {
	p := &plugin{flags: genericclioptions.NewConfigFlags(true), out: out}
	command := &cobra.Command{
		Use:           "kubectl-braid",
		Short:         "See what Braid does, and why",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl braid"},
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}
	command.SetOut(out)
	p.flags.AddFlags(command.PersistentFlags())
	p.addCompletions(command)
	command.AddCommand(p.statusCommand(), p.pathsCommand(), p.explainCommand(), p.validateCommand(), p.traceCommand(), p.uninstallCommand())
	command.AddCommand(p.topCommand(), p.eventsCommand(), p.sysdumpCommand(), p.initCommand(), p.testCommand(), p.previewCommand(), p.uiCommand())
	for _, one := range command.Commands() {
		one.RunE = explainRefusals(one.RunE)
	}
	return command
}

// explainRefusals says of what a tenant may not do who may, and of an API server that does
// not answer what that means.
func explainRefusals(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(command *cobra.Command, arguments []string) error {
		err := run(command, arguments)
		switch {
		case apierrors.IsForbidden(err):
			return fmt.Errorf("%w. docs/kubectl-braid.md says which rights a command needs, and which work with those of a namespace", err)
		case isAway(err):
			return fmt.Errorf("%w. The API server does not answer: the nodes go on with what they have, and changes wait. "+
				"See that it runs and that you reach it (kubectl get --raw /readyz); docs/troubleshooting.md#the-api-server-is-away", err)
		}
		return err
	}
}

// isAway: nothing listens at the API server's address, or nothing is there.
func isAway(err error) bool {
	for _, no := range []syscall.Errno{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ETIMEDOUT} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// addFormat adds -o to a command that prints something that programs may read.
func (p *plugin) addFormat(command *cobra.Command) *cobra.Command {
	command.Flags().VarP(&p.format, "output", "o", "json or yaml, in the place of text")
	return command
}

// client makes a client.
func (p *plugin) client() (client.WithWatch, error) {
	config, err := p.config()
	if err != nil {
		return nil, err
	}
	types := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(types), v1alpha1.AddToScheme(types)); err != nil {
		return nil, fmt.Errorf("registering types: %w", err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: types})
	if err != nil {
		return nil, fmt.Errorf("reaching the API server: %w", err)
	}
	return c, nil
}

// config says how to reach the API server.
func (p *plugin) config() (*rest.Config, error) {
	config, err := p.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the cluster: %w", err)
	}
	config.QPS, config.Burst = 50, 300 // as kubectl has them: plans are read one by one
	config.Wrap(p.clock.read)
	return config, nil
}

// namespace is the one that was given, or the context's.
func (p *plugin) namespace() (name string, given bool, err error) {
	name, given, err = p.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return "", false, fmt.Errorf("finding the namespace: %w", err)
	}
	return name, given, nil
}

// connect makes a client, and finds out whether Braid is installed at all.
func (p *plugin) connect(ctx context.Context) (client.WithWatch, error) {
	c, err := p.client()
	if err != nil {
		return nil, err
	}
	err = c.List(ctx, &v1alpha1.MPTCPPathList{}, client.Limit(1))
	switch {
	case meta.IsNoMatchError(err):
		return nil, errors.New("Braid is not installed on this cluster: it has no MPTCPPath; see docs/installation.md") //nolint:staticcheck // a name
	case err != nil && !apierrors.IsForbidden(err): // a tenant's
		return nil, fmt.Errorf("reading paths: %w", err)
	}
	return c, nil
}
