// SPDX-License-Identifier: Apache-2.0

package manifest_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/plugin/manifest"
)

// checked judges manifests, for the namespace team.
func checked(t *testing.T, manifests ...string) *manifest.Report {
	t.Helper()
	documents, err := manifest.Read([]string{"-"}, strings.NewReader(strings.Join(manifests, "\n---\n")))
	require.NoError(t, err)
	report, err := manifest.Check(t.Context(), documents, "team")
	require.NoError(t, err)
	return report
}

// found has a line for each finding: its object, severity, field and message.
func found(report *manifest.Report) (lines []string) {
	for _, finding := range report.Findings {
		line := string(finding.Severity)
		if finding.Refused {
			line = "Refused"
		}
		for _, part := range []string{finding.Object, finding.Field, finding.Message} {
			if part != "" {
				line += ": " + part
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// verdict is a case of a table: manifests, and everything that is found in them.
type verdict struct {
	manifests []string
	want      []string
}

func judge(t *testing.T, tests map[string]verdict) {
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.want, found(checked(t, test.manifests...)))
		})
	}
}

// ours is an object of Braid's: its kind, metadata and spec.
func ours(kind, metadata, spec string) string {
	return "apiVersion: braid.dev/v1alpha1\nkind: " + kind + "\nmetadata: " + metadata + "\nspec: " + spec
}

func path(name string) string {
	return ours("MPTCPPath", "{name: "+name+"}", "{interfaces: ["+name+"]}")
}

func mpol(name, spec string) string { return ours("MPTCPPolicy", "{name: "+name+"}", spec) }

const everyPod = "{podSelector: {}}"

func TestAnObjectIsJudgedByItself(t *testing.T) {
	judge(t, map[string]verdict{
		"an object without kind is refused":       {[]string{"apiVersion: braid.dev/v1alpha1"}, []string{"Refused: apiVersion and kind are needed"}},
		"an object without version is refused":    {[]string{"kind: MPTCPPath"}, []string{"Refused: apiVersion and kind are needed"}},
		"a version that is not served is refused": {[]string{strings.Replace(path("blue"), "v1alpha1", "v1", 1)}, []string{"Refused: MPTCPPath blue: apiVersion: MPTCPPath has no version v1; it has v1alpha1"}},
		"a kind that is none is refused": {[]string{ours("MptcpPath", "{name: blue}", "{}")}, []string{
			"Refused: MptcpPath blue: kind: Braid has no kind MptcpPath; it has ClusterMPTCPPolicy, MPTCPEndpoint, MPTCPGuardrail, MPTCPNode, MPTCPNodePlan, MPTCPPath, MPTCPPolicy",
		}},
		"a name is needed": {[]string{ours("MPTCPPath", "{}", "{interfaces: [ens1]}")}, []string{
			"Refused: MPTCPPath: metadata.name: Required value: name or generateName is required",
		}},
		"a generated name is one":         {[]string{ours("MPTCPPolicy", "{generateName: web-}", everyPod)}, nil},
		"generated names never are equal": {[]string{ours("MPTCPPath", "{generateName: web-}", "{interfaces: [a]}"), ours("MPTCPPath", "{generateName: web-}", "{interfaces: [b]}")}, nil},
		"labels are judged": {[]string{ours("MPTCPPath", "{name: blue, labels: {a: b c}}", "{interfaces: [ens1]}")}, []string{
			"Refused: MPTCPPath blue: metadata.labels: Invalid value: \"b c\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', " +
				"and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
		}},
		"a misspelt field is told with those that are known": {[]string{ours("MPTCPPath", "{name: blue}", "{interfaces: [ens1], capacty: 1G}")}, []string{
			`Refused: MPTCPPath blue: spec.capacty: unknown field "spec.capacty"; known here are addressRanges, bottleneckGroup, capacity, gateway, interfaces, nodeSelector, underlay`,
		}},
		"a misspelt field in a list has the place in it": {[]string{mpol("web", "{podSelector: {}, paths: {weights: [{path: a, weight: 1}, {path: b, wieght: 1}]}}")}, []string{
			`Refused: MPTCPPolicy team/web: spec.paths.weights[1].wieght: unknown field "spec.paths.weights[1].wieght"; known here are path, weight`,
			`Refused: MPTCPPolicy team/web: spec.paths.weights[1].weight: Required value`,
		}},
		"a field of the wrong type is refused": {[]string{mpol("web", "{podSelector: {}, priority: high}")}, []string{
			`Refused: MPTCPPolicy team/web: spec.priority: Invalid value: "string": spec.priority in body must be of type integer: "string"`,
		}},
		"a value that is not among those allowed is told with them": {[]string{mpol("web", "{podSelector: {}, subflows: {manager: Me}}")}, []string{
			`Refused: MPTCPPolicy team/web: spec.subflows.manager: Unsupported value: "Me": supported values: "Kernel", "Agent", "Host", "None"`,
		}},
		"an element that comes twice is refused": {[]string{mpol("web", "{podSelector: {}, paths: {allowed: [blue, blue]}}"), path("blue")}, []string{
			`Refused: MPTCPPolicy team/web: spec.paths.allowed[1]: Duplicate value: "blue"`,
		}},
		"a rule between two fields is judged": {[]string{mpol("web", "{podSelector: {}, subflows: {manager: None, count: 2}}")}, []string{
			"Refused: MPTCPPolicy team/web: spec.subflows: Invalid value: count has no effect with manager: None, which opens no subflow: remove it, or choose Kernel or Agent",
		}},
	})
}

func TestNamesAndNamespacesOfObjects(t *testing.T) {
	judge(t, map[string]verdict{
		"an object without namespace is in the one given": {[]string{mpol("web", everyPod), ours("MPTCPPolicy", "{name: web, namespace: team}", everyPod)}, []string{
			"Error: MPTCPPolicy team/web: metadata.name: the same object is in -, document 1",
		}},
		"the same name in two namespaces is of two objects": {[]string{mpol("web", everyPod), ours("MPTCPPolicy", "{name: web, namespace: shop}", everyPod)}, nil},
		"the same name of two kinds is of two objects":      {[]string{path("blue"), ours("MPTCPPolicy", "{name: blue}", everyPod)}, nil},
		"a path belongs to no namespace": {[]string{ours("MPTCPPath", "{name: blue, namespace: shop}", "{interfaces: [ens1]}"), path("blue")}, []string{
			"Warning: MPTCPPath blue: metadata.namespace: MPTCPPath belongs to no namespace: this one has no effect",
			"Error: MPTCPPath blue: metadata.name: the same object is in -, document 1",
		}},
	})
}

// byTeam decides for all pods of the namespaces of team shop.
var byTeam = ours("ClusterMPTCPPolicy", "{name: all}", "{namespaceSelector: {matchLabels: {team: shop}}, podSelector: {}}")

func guardrail(spec string) string {
	return ours("MPTCPGuardrail", "{name: tenants}", "{namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: Exists}]}, podSelector: {}, "+spec+"}")
}

// shop is the namespace of this name, with these labels.
func shop(labels string) string {
	return "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: " + labels + "}"
}

// pod is one of the namespace team, with these annotations.
func pod(annotations string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {app: web}, annotations: " + annotations + "}"
}

func TestObjectsAreJudgedTogether(t *testing.T) {
	judge(t, map[string]verdict{
		"what fits is fine":                      {[]string{path("blue"), path("green"), mpol("web", "{podSelector: {}, paths: {allowed: [blue, green]}}")}, nil},
		"a path may be defined after the policy": {[]string{mpol("web", "{podSelector: {}, paths: {allowed: [blue]}}"), path("blue")}, nil},
		"a path that is not there is told with those that are": {[]string{path("blue"), path("green"), mpol("web", "{podSelector: {}, paths: {allowed: [bleu]}}")}, []string{
			"Warning: MPTCPPolicy team/web: spec: no MPTCPPath bleu is among the manifests; there are blue, green",
		}},
		"where there is no path at all that is told": {[]string{mpol("web", "{podSelector: {}, paths: {allowed: [blue]}}")}, []string{
			"Warning: MPTCPPolicy team/web: spec: no MPTCPPath blue is among the manifests; there is none at all",
		}},
		"a path that two rules miss is told once": {[]string{path("blue"), mpol("web",
			"{podSelector: {}, rules: [{name: a, match: {paths: [red]}, actions: [{type: Record}]}, {name: b, match: {paths: [red, blue]}, actions: [{type: Record}]}]}")}, []string{
			"Warning: MPTCPPolicy team/web: spec.rules[0].match.paths[0]: no MPTCPPath is named red among the manifests; there are blue",
		}},
		"a rule that never runs names the one before it": {[]string{mpol("web",
			"{podSelector: {}, rules: [{name: a, actions: [{type: Reset}]}, {name: b, actions: [{type: Record}]}]}")}, []string{
			"Error: MPTCPPolicy team/web: spec.rules[1]: rule b: it never runs: rule a before it drops or resets everything that it matches; none of the policy's rules is applied",
		}},
		"an object that is refused is not judged with the others": {[]string{ours("MPTCPPath", "{name: blue}", "{}"), mpol("web", "{podSelector: {}, paths: {allowed: [blue]}}")}, []string{
			"Refused: MPTCPPath blue: spec: Invalid value: name the NICs of the path: set interfaces, addressRanges or both",
			"Warning: MPTCPPolicy team/web: spec: no MPTCPPath blue is among the manifests; there is none at all",
		}},
		"a path that guardrails forbid is told with the guardrail": {[]string{path("blue"), path("red"), guardrail("paths: [blue]"), mpol("web", "{podSelector: {}, paths: {allowed: [blue, red]}}"), pod("{}")}, []string{
			"Warning: MPTCPPolicy team/web: spec.paths: path red: MPTCPGuardrail tenants does not allow it",
		}},
		"a weight on a path without capacity is told": {[]string{path("blue"), guardrail("tenantPaths: [{path: blue, weight: 2}]")}, []string{
			"Warning: MPTCPGuardrail tenants: spec.tenantPaths: the weight of path blue has no effect: its MPTCPPath gives no capacity",
		}},
		"a weight on a path with capacity counts": {
			[]string{ours("MPTCPPath", "{name: blue}", "{interfaces: [ens1], capacity: 1G}"), guardrail("tenantPaths: [{path: blue, weight: 2}]")}, nil,
		},
		"a policy that decides for no pod names the one that wins": {[]string{mpol("web", everyPod), mpol("first", "{podSelector: {}, priority: 1}"), pod("{}")}, []string{
			"Warning: MPTCPPolicy team/web: spec: it decides for none of the pods that it selects here: MPTCPPolicy team/first wins",
		}},
		"a policy that decides for some pods is fine": {[]string{
			mpol("all", everyPod), mpol("some", "{podSelector: {matchLabels: {app: web}}, priority: 1}"), pod("{}"), strings.Replace(pod("{}"), "web", "other", 2),
		}, nil},
		"a path that some nodes alone have counts": {
			[]string{ours("MPTCPPath", "{name: blue}", "{interfaces: [ens1], nodeSelector: {matchLabels: {rack: a}}}"), mpol("web", "{podSelector: {}, paths: {allowed: [blue]}}"),
				pod("{braid.dev/preferred-paths: blue}")}, nil,
		},
	})
}

const noPolicy = "no policy among the manifests selects the pod: without one the annotation has no effect"

func TestNamespacesAreSelectedByTheLabelsOfTheirManifests(t *testing.T) {
	hinted := strings.Replace(pod("{braid.dev/max-rate: 1M}"), "name: web", "name: web, namespace: shop", 1)
	where := "Warning: Pod shop/web: metadata.annotations[braid.dev/max-rate]: "
	byName := ours("ClusterMPTCPPolicy", "{name: all}", "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}, podSelector: {}}")
	judge(t, map[string]verdict{
		"a label of the namespace's manifest counts":                           {[]string{byTeam, shop("{team: shop}"), hinted}, nil},
		"a namespace after its pods counts":                                    {[]string{hinted, byTeam, shop("{team: shop}")}, nil},
		"a namespace with another label is not selected":                       {[]string{byTeam, shop("{team: other}"), hinted}, []string{where + noPolicy}},
		"a namespace without manifest has no label":                            {[]string{byTeam, hinted}, []string{where + noPolicy}},
		"a namespace without manifest has the label of its name":               {[]string{byName, hinted}, nil},
		"a namespace with manifest has the label of its name":                  {[]string{byName, shop("{team: other}"), hinted}, nil},
		"a namespace has the label of its own name whatever its manifest says": {[]string{byName, shop("{kubernetes.io/metadata.name: other}"), hinted}, nil},
	})
}

func TestAnnotationsOfPodsAreJudged(t *testing.T) {
	selected := []string{path("blue"), path("green"), mpol("web", "{podSelector: {}, paths: {allowed: [blue, green]}}")}
	const preferred, backup, rate = "metadata.annotations[braid.dev/preferred-paths]: ", "metadata.annotations[braid.dev/backup-paths]: ", "metadata.annotations[braid.dev/max-rate]: "
	tests := map[string]verdict{}
	for name, test := range map[string]struct {
		annotations string
		want        []string
	}{
		"those that count are fine":               {"{braid.dev/preferred-paths: 'blue', braid.dev/backup-paths: ' green ', braid.dev/max-rate: 200M}", nil},
		"those of others are no business of ours": {"{example.com/max-rate: fast, braid.dev.example.com/x: y}", nil},
		"one that is unknown is told with those that are known": {"{braid.dev/maxrate: 1M}", []string{
			"Warning: Pod team/web: metadata.annotations[braid.dev/maxrate]: Braid has no such annotation; those that count are braid.dev/preferred-paths, braid.dev/backup-paths, braid.dev/max-rate, braid.dev/virtual-machine",
		}},
		"a rate that is none": {"{braid.dev/max-rate: fast}", []string{"Error: Pod team/web: " + rate + `"fast": it is no rate: it cannot be read as a quantity; give bits a second, such as 200M, from 8k to 10T`}},
		"a list with an empty element": {"{braid.dev/backup-paths: 'blue,,green'}", []string{
			"Error: Pod team/web: " + backup + `"blue,,green": it is no list of paths: there is nothing between two commas or beside one; give names of paths with commas between them`,
		}},
		"a name that no path can have": {"{braid.dev/preferred-paths: Blue}", []string{
			"Error: Pod team/web: " + preferred + `"Blue": it is no list of paths: "Blue" cannot be the name of a path; give names of paths with commas between them`,
		}},
		"what says that a pod holds a VM is fine": {"{braid.dev/virtual-machine: 'true'}", nil},
		"what says that it holds none is fine":    {"{braid.dev/virtual-machine: 'false'}", nil},
		"what says neither is told with what can be": {"{braid.dev/virtual-machine: 'yes'}", []string{
			`Error: Pod team/web: metadata.annotations[braid.dev/virtual-machine]: "yes": it is neither true nor false; give "true" where the pod holds a virtual machine`,
		}},
		"a path that is not there": {"{braid.dev/preferred-paths: red}", []string{
			"Warning: Pod team/web: " + preferred + "no MPTCPPath is named red; the annotation is not followed; the pod may use blue, green",
		}},
	} {
		tests[name] = verdict{append(selected[:3:3], pod(test.annotations)), test.want}
	}
	tests["without a policy they have no effect"] = verdict{[]string{pod("{braid.dev/max-rate: 1M}")}, []string{"Warning: Pod team/web: " + rate + noPolicy}}
	tests["in the network of the host they have no effect"] = verdict{append(selected[:3:3], pod("{braid.dev/max-rate: 1M}")+"\nspec: {hostNetwork: true}"), []string{
		"Warning: Pod team/web: " + rate + "it has no effect: it uses its host's network and has no interface of its own",
	}}
	tests["a rate above the guardrail's is told"] = verdict{append(selected[:3:3], guardrail("maxPodRate: 1M"), pod("{braid.dev/max-rate: 2M}")), []string{
		"Warning: Pod team/web: " + rate + "it asks for 2M; the guardrails of MPTCPGuardrail tenants allow a pod 1M, and the pod is held to that",
	}}
	tests["of two pods with generated names each has its own"] = verdict{[]string{
		path("blue"), mpol("web", "{podSelector: {matchLabels: {app: web}}}"),
		strings.Replace(pod("{braid.dev/max-rate: 1M}"), "name:", "generateName:", 1),
		strings.Replace(strings.Replace(pod("{braid.dev/max-rate: 1M}"), "name:", "generateName:", 1), "app: web", "app: other", 1),
	}, []string{"Warning: Pod team/web: " + rate + noPolicy}}
	judge(t, tests)
}

// Each kind that makes pods has its template at a place of its own.
func TestPodsAreFoundInWhateverMakesThem(t *testing.T) {
	const template = "metadata: {annotations: {braid.dev/max-rate: fast}}"
	for kind, test := range map[string]struct{ spec, place string }{
		"v1/Pod":              {template, "metadata"},
		"apps/v1/Deployment":  {"spec: {template: {" + template + "}}", "spec.template.metadata"},
		"apps/v1/StatefulSet": {"spec: {template: {" + template + "}}", "spec.template.metadata"},
		"apps/v1/DaemonSet":   {"spec: {template: {" + template + "}}", "spec.template.metadata"},
		"apps/v1/ReplicaSet":  {"spec: {template: {" + template + "}}", "spec.template.metadata"},
		"batch/v1/Job":        {"spec: {template: {" + template + "}}", "spec.template.metadata"},
		"batch/v1/CronJob":    {"spec: {jobTemplate: {spec: {template: {" + template + "}}}}", "spec.jobTemplate.spec.template.metadata"},
	} {
		t.Run(kind, func(t *testing.T) {
			at := strings.LastIndex(kind, "/")
			report := checked(t, "{apiVersion: "+kind[:at]+", kind: "+kind[at+1:]+", "+test.spec+"}")
			require.Equal(t, []int{0, 1, 0}, []int{report.Objects, report.Pods, report.Others})
			require.Len(t, report.Findings, 1)
			require.Equal(t, test.place+".annotations[braid.dev/max-rate]", report.Findings[0].Field)
			require.Equal(t, strings.TrimSpace(kind[at+1:]+" team/"), report.Findings[0].Object, "its namespace is that given")
		})
	}
}

func TestAnnotationsBesideTheTemplateAreToldWhereTheyBelong(t *testing.T) {
	report := checked(t, "apiVersion: apps/v1\nkind: Deployment\n"+
		"metadata: {name: web, annotations: {braid.dev/max-rate: 1M, example.com/owner: me}}\nspec: {template: {metadata: {}}}")
	require.Equal(t, []string{
		"Warning: Deployment team/web: metadata.annotations[braid.dev/max-rate]: it has no effect here: annotations of pods belong into spec.template.metadata.annotations",
	}, found(report))
}

func TestAReportCountsWhatItJudged(t *testing.T) {
	report := checked(t, path("blue"), mpol("web", "{podSelector: {}, paths: {allowed: [red]}}"), mpol("web", "{podSelectr: {}}"), pod("{}"),
		shop("{}"), "apiVersion: v1\nkind: Service\nmetadata: {name: web}", "apiVersion: example.com/v1\nkind: MPTCPPath\nmetadata: {name: blue}", "[]")
	findings := report.Findings
	report.Findings = nil
	require.Equal(t, &manifest.Report{Objects: 3, Pods: 1, Others: 3, Errors: 4, Warnings: 1}, report)
	var documents []int
	for _, finding := range findings {
		documents = append(documents, finding.Document)
	}
	require.Equal(t, []int{2, 3, 3, 3, 8}, documents, "in the order of the documents")
}
