// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"braid.dev/braid/plugin/manifest"
)

func (p *plugin) validateCommand() *cobra.Command {
	var files []string
	var strict bool
	command := &cobra.Command{
		Use:   "validate -f FILE|DIRECTORY|-",
		Short: "Check manifests without a cluster: schema, rules, and whether they fit together",
		Long: `Check manifests without a cluster. Braid's objects are judged as the API server
would, by the definitions that are built into this command; then all of them together
as the controller does; and the annotations of pods and of their templates.

The exit code is 0 when nothing is wrong or there are warnings alone, and 1 when
something is wrong or a file cannot be read.`,
		Example: "  kubectl braid validate -f manifests/\n  kustomize build . | kubectl braid validate -f -",
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return p.validate(command, files, strict)
		},
	}
	command.Flags().StringSliceVarP(&files, "filename", "f", nil, "file, directory, or - for the standard input; may be given several times")
	command.Flags().BoolVar(&strict, "strict", false, "let warnings count as errors")
	return p.addFormat(command)
}

func (p *plugin) validate(command *cobra.Command, files []string, strict bool) error {
	if len(files) == 0 {
		return errors.New("what is to be checked? Give --filename")
	}
	namespace, _, err := p.namespace()
	if err != nil {
		return err
	}
	documents, err := manifest.Read(files, command.InOrStdin())
	if err != nil {
		return err
	}
	report, err := manifest.Check(command.Context(), documents, namespace)
	if err != nil {
		return err
	}
	if err := p.print(report, func() string { return reportText(report) }); err != nil {
		return err
	}
	if report.Errors > 0 || strict && report.Warnings > 0 {
		return ErrNotFine
	}
	return nil
}

// reportText groups what was found by object.
func reportText(report *manifest.Report) string {
	var b strings.Builder
	before := ""
	for _, finding := range report.Findings {
		if head := findingHead(finding); head != before {
			fmt.Fprintln(&b, head)
			before = head
		}
		fmt.Fprintf(&b, "  %s: ", strings.ToLower(string(finding.Severity)))
		if finding.Field != "" {
			fmt.Fprintf(&b, "%s: ", finding.Field)
		}
		fmt.Fprintln(&b, finding.Message)
	}
	fmt.Fprintf(&b, "objects of Braid: %d, pods and templates: %d, not checked: %d; errors: %d, warnings: %d\n",
		report.Objects, report.Pods, report.Others, report.Errors, report.Warnings)
	return b.String()
}

func findingHead(finding manifest.Finding) string {
	head := fmt.Sprintf("%s, document %d", finding.File, finding.Document)
	if finding.Object != "" {
		head += ", " + finding.Object
	}
	return head
}
