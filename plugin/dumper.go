// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
)

// dumper reads the parts of a sysdump. What it knows to be free of secrets is copied;
// nothing is copied whole and cleaned afterwards but Braid's own kinds.
type dumper struct {
	client  client.Client
	system  *system
	options sysdumpOptions

	mutex sync.Mutex
	own   []corev1.Pod // Braid's
}

// clusterParts are those that the API server itself knows.
func (d *dumper) clusterParts() []part {
	parts := []part{
		{"versions", d.versions}, {"the status", d.status}, {"events", d.events}, {"pods", d.pods}, {"nodes", d.nodes},
		{"workloads", d.workloads}, {"leases", d.leases}, {"CRDs", d.definitions}, {"ConfigMaps", d.configMaps},
	}
	for name, list := range map[string]client.ObjectList{
		"mptcppaths": &v1alpha1.MPTCPPathList{}, "mptcppolicies": &v1alpha1.MPTCPPolicyList{},
		"clustermptcppolicies": &v1alpha1.ClusterMPTCPPolicyList{}, "mptcpguardrails": &v1alpha1.MPTCPGuardrailList{}, "mptcpendpoints": &v1alpha1.MPTCPEndpointList{}, "mptcpnodes": &v1alpha1.MPTCPNodeList{},
		"mptcpnodeplans": &v1alpha1.MPTCPNodePlanList{},
	} {
		parts = append(parts, part{name, func(ctx context.Context, a *archive) error {
			if err := d.client.List(ctx, list); err != nil {
				return err
			}
			if err := meta.EachListItem(list, clean); err != nil {
				return err
			}
			return a.addYAML("objects/"+name+".yaml", list)
		}})
	}
	return parts
}

// clean leaves out what others wrote into an object's metadata, and nodes' keys.
func clean(object runtime.Object) error {
	about, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	about.SetManagedFields(nil)
	about.SetAnnotations(ownAnnotations(about.GetAnnotations()))
	if node, is := object.(*v1alpha1.MPTCPNode); is && node.Status.EncapsulationKey != "" {
		node.Status.EncapsulationKey = "(left out)"
	}
	return nil
}

// ownAnnotations are Braid's.
func ownAnnotations(all map[string]string) map[string]string {
	own := map[string]string{}
	for key, value := range all {
		if strings.HasPrefix(key, "braid.dev/") {
			own[key] = value
		}
	}
	return own
}

func (d *dumper) versions(ctx context.Context, a *archive) error {
	pods, podErr := d.ownPods(ctx)
	server, err := d.system.core.Discovery().ServerVersion()
	images := map[string]string{}
	for i := range pods {
		for _, container := range pods[i].Status.ContainerStatuses {
			images[pods[i].Name] = strings.TrimSpace(container.Image + " " + container.ImageID)
		}
	}
	return errors.Join(podErr, err, a.addYAML("versions.yaml", map[string]any{
		"plugin": d.options.version, "server": server, "time": a.made.Format(time.RFC3339), "images": images,
	}))
}

func (d *dumper) status(ctx context.Context, a *archive) error {
	reader := &clusterReader{client: d.client, clock: d.options.clock, namespace: d.system.namespace}
	found, err := reader.read(ctx)
	if err != nil {
		return err
	}
	a.add("status.txt", []byte(found.status().text()))
	return nil
}

func (d *dumper) events(ctx context.Context, a *archive) error {
	all := map[types.UID]eventsv1.Event{}
	for _, list := range []struct {
		namespace string
		options   metav1.ListOptions
	}{{"", mine()}, {d.system.namespace, metav1.ListOptions{}}} {
		found, err := d.system.core.EventsV1().Events(list.namespace).List(ctx, list.options)
		if err != nil {
			return err
		}
		for i := range found.Items {
			all[found.Items[i].UID] = found.Items[i]
		}
	}
	events := make([]Event, 0, len(all))
	for _, event := range all {
		events = append(events, eventOf(&event))
	}
	sortEvents(events)
	return a.addYAML("events.yaml", events)
}

// ownPods are the controller's and the agents', read once.
func (d *dumper) ownPods(ctx context.Context) ([]corev1.Pod, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.own != nil {
		return d.own, nil
	}
	list, err := d.system.core.CoreV1().Pods(d.system.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name in (braid-agent, braid-controller)",
	})
	if err != nil {
		return nil, fmt.Errorf("looking for Braid's own pods: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("namespace %s has no pod of Braid: is it installed elsewhere (--system-namespace)?", d.system.namespace)
	}
	d.own = list.Items
	return d.own, nil
}

// pods are those of the plans, and Braid's own.
func (d *dumper) pods(ctx context.Context, a *archive) error {
	var plans v1alpha1.MPTCPNodePlanList
	if err := d.client.List(ctx, &plans); err != nil {
		return err
	}
	planned := map[types.UID]bool{}
	for i := range plans.Items {
		for j := range plans.Items[i].Spec.Endpoints {
			planned[plans.Items[i].Spec.Endpoints[j].UID] = true
		}
	}
	pods := []podSummary{}
	var page corev1.PodList
	for {
		if err := d.client.List(ctx, &page, client.Limit(500), client.Continue(page.Continue)); err != nil {
			return err
		}
		for i := range page.Items {
			if pod := &page.Items[i]; planned[pod.UID] || pod.Namespace == d.system.namespace {
				pods = append(pods, summaryOfPod(pod))
			}
		}
		if page.Continue == "" {
			return a.addYAML("objects/pods.yaml", pods)
		}
	}
}

func (d *dumper) nodes(ctx context.Context, a *archive) error {
	var list corev1.NodeList
	if err := d.client.List(ctx, &list); err != nil {
		return err
	}
	nodes := []nodeSummary{}
	for i := range list.Items {
		nodes = append(nodes, summaryOfNode(&list.Items[i]))
	}
	return a.addYAML("objects/nodes.yaml", nodes)
}

func (d *dumper) workloads(ctx context.Context, a *archive) error {
	apps := d.system.core.AppsV1()
	daemonSets, err1 := apps.DaemonSets(d.system.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=braid"})
	deployments, err2 := apps.Deployments(d.system.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=braid"})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	for i := range daemonSets.Items {
		cleanWorkload(&daemonSets.Items[i].ObjectMeta, &daemonSets.Items[i].Spec.Template)
	}
	for i := range deployments.Items {
		cleanWorkload(&deployments.Items[i].ObjectMeta, &deployments.Items[i].Spec.Template)
	}
	return a.addYAML("workloads.yaml", struct {
		DaemonSets  []appsv1.DaemonSet  `json:"daemonSets"`
		Deployments []appsv1.Deployment `json:"deployments"`
	}{daemonSets.Items, deployments.Items})
}

func (d *dumper) leases(ctx context.Context, a *archive) error {
	list, err := d.system.core.CoordinationV1().Leases(d.system.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if err := meta.EachListItem(list, clean); err != nil {
		return err
	}
	return a.addYAML("objects/leases.yaml", list.Items)
}

// definitions are Braid's CRDs without their schemas, which follow from the version.
func (d *dumper) definitions(ctx context.Context, a *archive) error {
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("apiextensions.k8s.io/v1")
	list.SetKind("CustomResourceDefinitionList")
	if err := d.client.List(ctx, list); err != nil {
		return err
	}
	found := map[string]any{}
	for i := range list.Items {
		if crd := &list.Items[i]; strings.HasSuffix(crd.GetName(), "."+v1alpha1.GroupVersion.Group) {
			found[crd.GetName()] = map[string]any{"labels": crd.GetLabels(), "created": crd.GetCreationTimestamp(), "status": crd.Object["status"]}
		}
	}
	return a.addYAML("objects/crds.yaml", found)
}

// configMaps are those that may hold programs: their names and sizes.
func (d *dumper) configMaps(ctx context.Context, a *archive) error {
	list, err := d.system.core.CoreV1().ConfigMaps(d.system.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	sizes := map[string]map[string]int{}
	for i := range list.Items {
		entries := map[string]int{}
		for key, value := range list.Items[i].BinaryData {
			entries[key] = len(value)
		}
		for key, value := range list.Items[i].Data {
			entries[key] = len(value)
		}
		sizes[list.Items[i].Name] = entries
	}
	return a.addYAML("objects/configmap_sizes.yaml", sizes)
}

// podParts are logs and metrics of each of Braid's pods, and what each agent shows.
func (d *dumper) podParts() (parts []part) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	for i := range d.own {
		pod := &d.own[i]
		for _, container := range pod.Status.ContainerStatuses {
			parts = append(parts, d.logPart(pod, container.Name, false))
			if container.RestartCount > 0 {
				parts = append(parts, d.logPart(pod, container.Name, true))
			}
		}
		if servesMetrics(pod) {
			parts = append(parts, d.metricsPart(pod))
		}
		if pod.Labels["app.kubernetes.io/name"] == "braid-agent" {
			parts = append(parts,
				d.agentPart(pod, "subflows.json", "subflows"), d.agentPart(pod, "rules.json", "rules"), d.agentPart(pod, "reports.jsonl", "events"),
				d.agentPart(pod, "spreading.json", "spreading"))
		}
	}
	return parts
}

func (d *dumper) metricsPart(pod *corev1.Pod) part {
	return part{"metrics of " + pod.Name, func(ctx context.Context, a *archive) error {
		out := &beginning{limit: largest}
		err := d.system.ask(ctx, pod, out, "metrics")
		if out.Len() > 0 {
			a.add("metrics/"+pod.Name+".txt", out.Bytes())
		}
		return err
	}}
}

func servesMetrics(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(container corev1.Container) bool {
		return slices.ContainsFunc(container.Ports, func(port corev1.ContainerPort) bool { return port.Name == "metrics" })
	})
}

// largest is what one file of an archive may have, in bytes; the rest is cut off.
const largest = 32 << 20

func (d *dumper) agentPart(agent *corev1.Pod, name, command string) part {
	what := "what the agent on " + agent.Spec.NodeName + " shows: " + command
	return part{what, func(ctx context.Context, a *archive) error {
		out := &beginning{limit: largest}
		err := d.system.ask(ctx, agent, out, command, "--output=json")
		if out.Len() > 0 {
			a.add("nodes/"+agent.Spec.NodeName+"/"+name, out.Bytes())
		}
		return errors.Join(err, out.cutOff())
	}}
}

func (d *dumper) logPart(pod *corev1.Pod, container string, previous bool) part {
	name := "logs/" + pod.Name + "/" + container + ".log"
	options := &corev1.PodLogOptions{Container: container, Previous: previous, Timestamps: true}
	if previous {
		name = "logs/" + pod.Name + "/" + container + ".previous.log"
	}
	if d.options.since > 0 {
		options.SinceSeconds = ptr.To(int64(d.options.since.Seconds()))
	}
	return part{name, func(ctx context.Context, a *archive) error {
		stream, err := d.system.core.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).Stream(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = stream.Close() }() // it was only read
		out := &ending{limit: largest}
		_, err = io.Copy(out, stream)
		a.add(name, out.bytes())
		return err
	}}
}
