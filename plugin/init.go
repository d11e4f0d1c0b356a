// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/output"
	"braid.dev/braid/plugin/planes"
)

// initOptions say what to make of what is found.
type initOptions struct {
	apply, force bool
	// spread are namespaces that get a policy.
	spread []string
}

// proposal is what was found, and what would be created.
type proposal struct {
	nodes    []planes.Node
	planes   []planes.Plane
	findings []planes.Finding
	objects  []client.Object
}

func (p *plugin) initCommand() *cobra.Command {
	var options initOptions
	command := &cobra.Command{
		Use:   "init",
		Short: "Say whether Braid works in this cluster, and propose its paths from the NICs that the nodes have",
		Long: `Ask the nodes' agents for their NICs, group these into planes by subnet and by who
answers whom, and say whether connections can be spread over them in this cluster, and what
to do where they cannot. It changes nothing unless --apply is given: then it creates the
MPTCPPaths that are missing, and never changes one that is there. Agents that are about to
start, as right after an installation, are waited for.

With -o yaml it writes the manifests, for a repository, and what is wrong to the standard
error. The exit code is 1 while something has to be mended first.`,
		Example: "  kubectl braid init\n  kubectl braid init --apply --spread default\n  kubectl braid init --spread shop -o yaml > braid.yaml",
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if options.apply && p.format != output.Text {
				return errors.New("give --apply or --output, not both")
			}
			return p.init(command, options)
		},
	}
	flags := command.Flags()
	flags.BoolVar(&options.apply, "apply", false, "create what is proposed")
	flags.BoolVar(&options.force, "force", false, "with --apply: also where something has to be mended first")
	flags.StringSliceVar(&options.spread, "spread", nil, "add a policy for all pods of this namespace")
	mustComplete(command, "spread", p.names(&corev1.NamespaceList{}))
	addSystem(command, &p.systemNamespace)
	return p.addFormat(command)
}

func (p *plugin) init(command *cobra.Command, options initOptions) error {
	c, err := p.connect(command.Context())
	if err != nil {
		return err
	}
	if err := p.awaitAgents(command.Context(), c, command.ErrOrStderr()); err != nil {
		return err
	}
	found, err := p.propose(command.Context(), c, options.spread)
	if err != nil {
		return err
	}
	if p.format != output.Text {
		fmt.Fprint(command.ErrOrStderr(), findingsText(found.wrong()))
		err = p.writeObjects(found.objects)
	} else {
		fmt.Fprint(p.out, found.text())
		err = p.createOrTell(command.Context(), c, found, options)
	}
	if err == nil && found.failed() {
		return ErrNotFine
	}
	return err
}

// propose asks the agents for their NICs, then in clusters of several racks for which of these
// routers join, and then for who answers on them.
func (p *plugin) propose(ctx context.Context, c client.Client, spread []string) (*proposal, error) {
	surveyor, err := p.newSurveyor(ctx, c)
	if err != nil {
		return nil, err
	}
	var paths v1alpha1.MPTCPPathList
	if err := c.List(ctx, &paths); err != nil {
		return nil, fmt.Errorf("reading paths: %w", err)
	}
	surveyor.ask(ctx, nil)
	if questions := planes.RackQuestions(surveyor.nodes); len(questions) > 0 {
		surveyor.ask(ctx, questions)
	}
	found := &proposal{planes: planes.Find(surveyor.nodes, paths.Items)}
	surveyor.ask(ctx, planes.Questions(surveyor.nodes, found.planes))
	found.nodes = surveyor.nodes
	found.findings = planes.Judge(found.nodes, found.planes)
	for i := range found.planes {
		if plane := &found.planes[i]; !plane.Exists && i < planes.MaxPaths {
			found.objects = append(found.objects, plane.Path())
		}
	}
	for _, namespace := range spread {
		found.objects = append(found.objects, planes.Policy(namespace))
	}
	return found, ctx.Err()
}

func (f *proposal) wrong() (findings []planes.Finding) {
	for _, finding := range f.findings {
		if finding.Level != planes.OK {
			findings = append(findings, finding)
		}
	}
	return findings
}

func (f *proposal) failed() bool {
	return slices.ContainsFunc(f.findings, func(one planes.Finding) bool { return one.Level == planes.Failed })
}

// createOrTell creates what is missing, or says how to.
func (p *plugin) createOrTell(ctx context.Context, c client.Client, found *proposal, options initOptions) error {
	switch {
	case len(found.objects) == 0:
		fmt.Fprintln(p.out, "\nNothing is missing.")
		return nil
	case !options.apply:
		fmt.Fprintf(p.out, "\n--apply creates %s; -o yaml writes them.\n", strings.Join(titles(found.objects), ", "))
		return nil
	case found.failed() && !options.force:
		fmt.Fprintln(p.out, "\nNothing was created: mend what failed first, or give --force.")
		return nil
	}
	fmt.Fprintln(p.out)
	for _, object := range found.objects {
		name := title(object) // what is read back has no kind
		err := c.Create(ctx, object)
		switch {
		case apierrors.IsAlreadyExists(err):
			fmt.Fprintf(p.out, "%s is there, and was left as it is\n", name)
		case err != nil:
			return fmt.Errorf("creating %s: %w", name, err)
		default:
			fmt.Fprintf(p.out, "%s created\n", name)
		}
	}
	return nil
}

// title names an object as kubectl does.
func title(object client.Object) string {
	name := strings.ToLower(object.GetObjectKind().GroupVersionKind().Kind) + "/" + object.GetName()
	if namespace := object.GetNamespace(); namespace != "" {
		name += " in " + namespace
	}
	return name
}

func titles(objects []client.Object) (all []string) {
	for _, object := range objects {
		all = append(all, title(object))
	}
	return all
}

// writeObjects writes manifests without what only the API server fills in.
func (p *plugin) writeObjects(objects []client.Object) error {
	manifests := make([]map[string]any, 0, len(objects))
	for _, object := range objects {
		manifest, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return fmt.Errorf("writing %s: %w", title(object), err)
		}
		delete(manifest, "status")
		delete(manifest["metadata"].(map[string]any), "creationTimestamp")
		maps.DeleteFunc(manifest["spec"].(map[string]any), func(field string, value any) bool {
			fields, isMap := value.(map[string]any)
			return isMap && len(fields) == 0 && field != "podSelector" // where nothing means everything
		})
		manifests = append(manifests, manifest)
	}
	if p.format == output.JSON {
		return p.format.Write(p.out, map[string]any{"apiVersion": "v1", "kind": "List", "items": manifests})
	}
	for i, manifest := range manifests {
		if err := writeManifest(p.out, i > 0, manifest); err != nil {
			return err
		}
	}
	return nil
}

func writeManifest(out io.Writer, separate bool, manifest map[string]any) error {
	text, err := yaml.Marshal(manifest)
	if err != nil {
		return fmt.Errorf("writing a manifest: %w", err)
	}
	if separate {
		fmt.Fprintln(out, "---")
	}
	_, err = out.Write(text)
	return err
}

// nodesShown keeps the table short in large clusters: of more nodes, those that lack
// something are shown.
const nodesShown = 20

func (f *proposal) text() string {
	header := []string{"NODE"}
	for i := range f.planes {
		name := f.planes[i].Name
		switch plane := &f.planes[i]; {
		case plane.Exists:
			name += " (exists)"
		case plane.Routed:
			name += " (routed)"
		}
		header = append(header, name)
	}
	rows, left := [][]string{header}, 0
	for i := range f.nodes {
		row, whole := f.row(&f.nodes[i])
		if whole && len(f.nodes) > nodesShown {
			left++
			continue
		}
		rows = append(rows, row)
	}
	text := table(rows...)
	if left > 0 {
		text += fmt.Sprintf("and %d nodes that have a NIC on each\n", left)
	}
	return text + "\n" + findingsText(f.findings)
}

// row is a node's NICs, or why it has none.
func (f *proposal) row(node *planes.Node) (cells []string, whole bool) {
	cells, whole = []string{node.Name}, node.Survey != nil
	for i := range f.planes {
		plane := &f.planes[i]
		member, fault := plane.Member(node.Name), planes.Fault(node, plane)
		switch {
		case fault != "":
			cells, whole = append(cells, fault), false
		case member == nil:
			cells = append(cells, "-")
		default:
			cells = append(cells, strings.TrimSpace(fmt.Sprintf("%s %s", member.NIC, member.First(plane.Subnets))))
		}
	}
	return cells, whole
}

func findingsText(findings []planes.Finding) string {
	var rows [][]string
	remedies := ""
	for _, finding := range findings {
		rows = append(rows, []string{finding.Check, string(finding.Level), finding.Message})
		if finding.Remedy != "" {
			remedies += fmt.Sprintf("  %s: %s\n", finding.Check, finding.Remedy)
		}
	}
	if remedies != "" {
		remedies = "\nWhat to do:\n" + remedies
	}
	return table(rows...) + remedies
}
