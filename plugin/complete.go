// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
)

// completionTimeout bounds how long a shell waits for an API server.
const completionTimeout = 3 * time.Second

// maxCompletions is more than anybody reads.
const maxCompletions = 500

// completer completes what a user began to type.
type completer = cobra.CompletionFunc

// mustComplete registers a completer for a flag that the command has.
func mustComplete(command *cobra.Command, flag string, complete completer) {
	if err := command.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // the flag does not exist, or has a completer already
	}
}

// addCompletions completes kubectl's own flags.
func (p *plugin) addCompletions(command *cobra.Command) {
	mustComplete(command, "namespace", p.names(&corev1.NamespaceList{}))
	mustComplete(command, "context", p.contexts)
}

func (p *plugin) contexts(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	config, err := p.flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for name := range config.Contexts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, cobra.ShellCompDirectiveNoFileComp
}

// names completes the names of the objects of a kind, of the namespace that was
// given or is the context's.
func (p *plugin) names(kind client.ObjectList) completer {
	return func(command *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		names, err := p.listNames(command.Context(), kind)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// podNames completes a command's only argument.
func (p *plugin) podNames(command *cobra.Command, arguments []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(arguments) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return p.names(&corev1.PodList{})(command, arguments, begun)
}

func (p *plugin) listNames(ctx context.Context, kind client.ObjectList) ([]string, error) {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	c, err := p.client()
	if err != nil {
		return nil, err
	}
	namespace, _, err := p.namespace()
	if err != nil {
		return nil, err
	}
	list := kind.DeepCopyObject().(client.ObjectList)
	if err := c.List(ctx, list, inNamespace(list, namespace), client.Limit(maxCompletions)); err != nil {
		return nil, err
	}
	var names []string
	err = meta.EachListItem(list, func(object runtime.Object) error {
		if named, ok := object.(metav1.Object); ok {
			names = append(names, named.GetName())
		}
		return nil
	})
	return names, err
}

// namespaced is false for kinds that belong to the cluster.
func (k kind) namespaced() bool { return inNamespace(k.list, "a") != "" }

// inNamespace is no limit for kinds that belong to the cluster.
func inNamespace(list client.ObjectList, namespace string) client.InNamespace {
	switch list.(type) {
	case *corev1.PodList, *v1alpha1.MPTCPPolicyList, *v1alpha1.MPTCPEndpointList:
		return client.InNamespace(namespace)
	}
	return ""
}

// kind is one whose objects Braid reports on.
type kind struct {
	// name is as in events, aliases are those that kubectl knows too.
	name    string
	aliases []string
	list    client.ObjectList
}

var kinds = []kind{
	{"MPTCPPolicy", []string{"mpol", "mptcppolicy", "mptcppolicies"}, &v1alpha1.MPTCPPolicyList{}},
	{"ClusterMPTCPPolicy", []string{"cmpol", "clustermptcppolicy", "clustermptcppolicies"}, &v1alpha1.ClusterMPTCPPolicyList{}},
	{"MPTCPGuardrail", []string{"mguard", "mptcpguardrail", "mptcpguardrails"}, &v1alpha1.MPTCPGuardrailList{}},
	{"MPTCPEndpoint", []string{"mep", "mptcpendpoint", "mptcpendpoints"}, &v1alpha1.MPTCPEndpointList{}},
	{"MPTCPPath", []string{"mpath", "mptcppath", "mptcppaths"}, &v1alpha1.MPTCPPathList{}},
	{"MPTCPNode", []string{"mnode", "mptcpnode", "mptcpnodes"}, &v1alpha1.MPTCPNodeList{}},
	{"MPTCPNodePlan", []string{"mplan", "mptcpnodeplan", "mptcpnodeplans"}, &v1alpha1.MPTCPNodePlanList{}},
	{"Pod", []string{"pod", "po", "pods"}, &corev1.PodList{}},
	{"Node", []string{"node", "no", "nodes"}, &corev1.NodeList{}},
}

var errKind = errors.New("must be KIND/NAME, with a kind among mpol, cmpol, mguard, mep, mpath, mnode, mplan, pod, node")

// parseObject reads KIND/NAME.
func parseObject(text string) (kind, string, error) {
	alias, name, _ := strings.Cut(text, "/")
	for _, k := range kinds {
		if name != "" && slices.Contains(k.aliases, strings.ToLower(alias)) {
			return k, name, nil
		}
	}
	return kind{}, "", errKind
}

// objectNames completes KIND/NAME.
func (p *plugin) objectNames(command *cobra.Command, arguments []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	alias, _, named := strings.Cut(begun, "/")
	if !named {
		var all []cobra.Completion
		for _, k := range kinds {
			all = append(all, k.aliases[0]+"/")
		}
		return all, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	}
	k, _, err := parseObject(alias + "/any")
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names, directive := p.names(k.list)(command, arguments, begun)
	for i := range names {
		names[i] = alias + "/" + names[i]
	}
	return names, directive
}
