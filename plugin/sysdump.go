// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// sysdumpOptions say what to write, and where.
type sysdumpOptions struct {
	systemNamespace, file, version string
	since                          time.Duration
	clock                          *serverClock
}

func (p *plugin) sysdumpCommand() *cobra.Command {
	var options sysdumpOptions
	command := &cobra.Command{
		Use:   "sysdump",
		Short: "Write one archive for a bug report, without secrets",
		Long: `Write one archive (.tar.gz) with what helps to understand a problem: Braid's objects and
events, nodes and pods that take part, Braid's own logs and metrics, and what each agent
shows of subflows and rules. What cannot be read is named in errors.txt.

Secrets, environment variables' values, and annotations that are not Braid's are never
read into it.`,
		Example: "  kubectl braid sysdump\n  kubectl braid sysdump --since 2h --file /tmp/braid.tar.gz",
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			options.version, options.clock = command.Root().Version, &p.clock
			return p.sysdump(command.Context(), options, &progress{out: command.ErrOrStderr()})
		},
	}
	command.Flags().StringVarP(&options.file, "file", "f", "", "archive to write, - for the standard output (default braid-sysdump-TIME.tar.gz)")
	command.Flags().DurationVar(&options.since, "since", 0, "how far back logs are read; 0 for all that is kept")
	addSystem(command, &options.systemNamespace)
	return command
}

func (p *plugin) sysdump(ctx context.Context, options sysdumpOptions, progress *progress) error {
	c, err := p.client()
	if err != nil {
		return err
	}
	s, err := p.system(options.systemNamespace)
	if err != nil {
		return err
	}
	// With nobody to ask, an archive would have nothing but errors.
	if _, err := s.core.Discovery().ServerVersion(); err != nil && !apierrors.IsForbidden(err) {
		return fmt.Errorf("asking the API server for its version: %w", err)
	}
	now := time.Now().UTC()
	name := "braid-sysdump-" + now.Format("20060102-150405")
	if options.file == "-" {
		_, err := dump(ctx, c, s, options, newArchive(p.out, name, now, progress))
		return err
	}
	if options.file == "" {
		options.file = name + ".tar.gz"
	}
	return p.dumpToFile(ctx, c, s, options, func(out io.Writer) *archive { return newArchive(out, name, now, progress) })
}

// dumpToFile leaves a whole archive that its owner alone can read, or none.
func (p *plugin) dumpToFile(ctx context.Context, c client.Client, s *system, options sysdumpOptions, archiveTo func(io.Writer) *archive) error {
	file, err := os.OpenFile(options.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("making the archive: %w", err)
	}
	said, err := dump(ctx, c, s, options, archiveTo(file))
	if err := errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(options.file))
	}
	fmt.Fprintf(p.out, "%s: %s\n", options.file, said)
	return nil
}

// dump fills the archive, and says what became of it.
func dump(ctx context.Context, c client.Client, s *system, options sysdumpOptions, a *archive) (string, error) {
	d := &dumper{client: c, system: s, options: options}
	a.add("README.txt", []byte(sysdumpReadme))
	a.addAll(ctx, d.clusterParts())
	a.addAll(ctx, d.podParts())
	if err := errors.Join(ctx.Err(), a.close()); err != nil {
		return "", err
	}
	said := fmt.Sprintf("%d files", a.count)
	if len(a.failures) > 0 {
		said += fmt.Sprintf("; %d parts could not be read, see errors.txt in it", len(a.failures))
	}
	return said, nil
}

const sysdumpReadme = `What kubectl braid sysdump found. Read it before you give it away: it has names and
addresses of pods and nodes, and what Braid's own programs logged.

versions.yaml         of the plugin, the API server and Braid's images
status.txt            as kubectl braid status
errors.txt            what could not be read, and why
events.yaml           Braid's Events, and all of its namespace
objects/              Braid's objects; nodes, and pods that a policy selects, without
                      environment, arguments and foreign annotations
workloads.yaml        Braid's DaemonSet and Deployment, which show what the chart's values
                      became; of environment variables the names alone
nodes/NODE/           what the node's agent shows: subflows, rules, reports of rules, and what
                      pods' traffic does
logs/POD/             Braid's own, .previous.log of the run before
metrics/POD.txt       Braid's own

Secrets, ConfigMaps' contents, values of environment variables and keys of connections
and nodes are not in it. Tokens are: they name connections, and open none.
`
