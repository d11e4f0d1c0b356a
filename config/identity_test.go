// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"braid.dev/braid/agent/identity"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/controllers"
	"braid.dev/braid/internal/testutil"
)

// inAgents is of an account of an agent.
func inAgents(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: systemNamespace + v1alpha1.AgentsNamespaceSuffix, Name: name}
}

// startController runs the controllers with the rights that the manifests give them.
func startController(t *testing.T) {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	config, err := server.ServiceAccountConfig(t.Context(), systemNamespace, "braid-controller", "")
	if err != nil {
		t.Fatal(err)
	}
	options := controllers.ControllerConfig()
	options.SkipNameValidation = new(true)
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: newScheme(t), Cache: controllers.CacheOptions(systemNamespace), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: options,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := controllers.Setup(mgr, controllers.Options{Namespace: systemNamespace}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// sharedConfig is with a token as the kubelet mounts it into the agent's pod of a node.
func sharedConfig(t *testing.T, node string) *rest.Config {
	t.Helper()
	config, err := server.ServiceAccountConfig(t.Context(), systemNamespace, "braid-agent", node)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// agentConfig is with what the agent of a node makes of that, once its account has its
// rights.
func agentConfig(t *testing.T, node string) *rest.Config {
	t.Helper()
	config, err := identity.Config(t.Context(), sharedConfig(t, node), systemNamespace, node, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	own := newClient(t, config)
	testutil.Retry(t, 30*time.Second, func() error { return own.Get(t.Context(), client.ObjectKey{Name: node}, &corev1.Node{}) })
	return config
}

// answer is what the API server says to a request by its path.
func answer(t *testing.T, config *rest.Config, method, path string) error {
	t.Helper()
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), method, config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := c.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	content, _ := io.ReadAll(io.LimitReader(response.Body, 400)) // to be shown
	err = fmt.Errorf("%s %s: %s %s", method, path, response.Status, content)
	if response.StatusCode == http.StatusForbidden {
		return apierrors.NewForbidden(schema.GroupResource{}, path, err)
	}
	return err
}

// newNodes are two nodes with agents, and what they have.
func newNodes(t *testing.T) {
	t.Helper()
	admin := newClient(t, server.Config())
	create(t, admin, &corev1.Node{ObjectMeta: named("ours")}, &corev1.Node{ObjectMeta: named("theirs")},
		&v1alpha1.MPTCPNode{ObjectMeta: named("theirs")}, &coordinationv1.Lease{ObjectMeta: inSystem("braid-agent-theirs")},
		&corev1.ConfigMap{ObjectMeta: inSystem("settings"), Data: map[string]string{"key": "value"}})
	startController(t)
	for _, node := range []string{"ours", "theirs"} {
		testutil.Retry(t, 30*time.Second, func() error {
			return admin.Get(t.Context(), client.ObjectKey{Name: node}, &v1alpha1.MPTCPNodePlan{})
		})
	}
}

func TestAStolenTokenReadsWhatItsNodeNeedsAndNothingElse(t *testing.T) {
	newNodes(t)
	for name, config := range map[string]*rest.Config{"the shared account's": sharedConfig(t, "ours"), "the node's": agentConfig(t, "ours")} {
		const plans, nodes, inSystem = "/apis/braid.dev/v1alpha1/mptcpnodeplans", "/api/v1/nodes", "/api/v1/namespaces/" + systemNamespace
		const inAgents = inSystem + "-agents"
		for _, path := range []string{
			plans, plans + "?watch=1", plans + "/theirs", plans + "?fieldSelector=metadata.name=theirs", plans + "?watch=1&fieldSelector=metadata.name=theirs",
			plans + "?fieldSelector=metadata.name!=ours", plans + "?labelSelector=a", plans + "/theirs/status",
			nodes, nodes + "?watch=1", nodes + "/theirs", nodes + "?fieldSelector=metadata.name=theirs", nodes + "/ours/proxy/pods", nodes + "/theirs/status",
			inSystem + "/configmaps", inSystem + "/configmaps/settings", inSystem + "/configmaps?fieldSelector=metadata.name=settings",
			inSystem + "/secrets", "/api/v1/secrets", "/api/v1/pods", "/api/v1/pods?fieldSelector=spec.nodeName=ours", inSystem + "/pods", "/api/v1/namespaces", "/api/v1/events",
			inSystem + "/serviceaccounts", inAgents + "/serviceaccounts", inAgents + "/serviceaccounts/braid-agent-ours", inAgents + "/secrets",
			"/apis/rbac.authorization.k8s.io/v1/clusterroles", "/apis/rbac.authorization.k8s.io/v1/namespaces/" + systemNamespace + "/roles",
			"/apis/coordination.k8s.io/v1/leases", "/apis/coordination.k8s.io/v1/namespaces/" + systemNamespace + "/leases/braid-agent-theirs",
			"/apis/braid.dev/v1alpha1/mptcppolicies", "/apis/braid.dev/v1alpha1/clustermptcppolicies", "/apis/braid.dev/v1alpha1/mptcpguardrails", "/apis/braid.dev/v1alpha1/mptcppaths",
		} {
			t.Run(name+" "+path, func(t *testing.T) { expect(t, answer(t, config, http.MethodGet, path), "forbidden") })
		}
		for _, path := range []string{plans, plans + "?fieldSelector=metadata.name=ours", nodes, "/apis/braid.dev/v1alpha1/mptcpnodes",
			"/apis/coordination.k8s.io/v1/namespaces/" + systemNamespace + "/leases", inSystem + "/configmaps", inAgents + "/serviceaccounts"} {
			t.Run(name+" delete all "+path, func(t *testing.T) { expect(t, answer(t, config, http.MethodDelete, path), "forbidden") })
		}
	}
}

func TestAStolenTokenWritesWhatItsNodeNeedsAndNothingElse(t *testing.T) {
	newNodes(t)
	shared, own := newClient(t, sharedConfig(t, "ours")), newClient(t, agentConfig(t, "ours"))
	ours, theirs := &v1alpha1.MPTCPNodePlan{ObjectMeta: named("ours")}, &v1alpha1.MPTCPNodePlan{ObjectMeta: named("theirs")}
	theirNode, theirLease := &v1alpha1.MPTCPNode{ObjectMeta: named("theirs")}, &coordinationv1.Lease{ObjectMeta: inSystem("braid-agent-theirs")}
	merge := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"a":"b"}}}`))
	cluster := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}
	for name, c := range map[string]client.Client{"the shared account's": shared, "the node's": own} {
		for what, write := range map[string]func() error{
			"the status of another's plan":      func() error { return patchStatus(t, c, theirs) },
			"the status of another's MPTCPNode": func() error { return c.Status().Patch(t.Context(), theirNode, merge) },
			"the MPTCPNode of a node to come":   func() error { return c.Create(t.Context(), &v1alpha1.MPTCPNode{ObjectMeta: named("other")}) },
			"its own plan":                      func() error { return c.Patch(t.Context(), ours, merge) },
			"a plan":                            func() error { return c.Create(t.Context(), &v1alpha1.MPTCPNodePlan{ObjectMeta: named("new")}) },
			"the end of its own plan":           func() error { return c.Delete(t.Context(), ours) },
			"the end of another's MPTCPNode":    func() error { return c.Delete(t.Context(), theirNode) },
			"its own Node":                      func() error { return c.Patch(t.Context(), &corev1.Node{ObjectMeta: named("ours")}, merge) },
			"another's Lease":                   func() error { return c.Update(t.Context(), theirLease) },
			"the end of another's Lease":        func() error { return c.Delete(t.Context(), theirLease) },
			"a Lease of another name": func() error {
				return c.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: inSystem("braid-controller")})
			},
			"a Lease elsewhere": func() error {
				return c.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: "braid-agent-ours"}})
			},
			"an Event": func() error {
				return c.Create(t.Context(), &corev1.Event{ObjectMeta: inSystem("event"), InvolvedObject: corev1.ObjectReference{Namespace: systemNamespace}})
			},
			"an Event of the newer kind": func() error { return c.Create(t.Context(), &eventsv1.Event{ObjectMeta: inSystem("event")}) },
			"a ConfigMap": func() error {
				return c.Patch(t.Context(), &corev1.ConfigMap{ObjectMeta: inSystem("settings")}, merge)
			},
			"a pod": func() error { return c.Create(t.Context(), &corev1.Pod{ObjectMeta: inSystem("pod")}) },
			"its rights": func() error {
				return c.Patch(t.Context(), &rbacv1.ClusterRole{ObjectMeta: named("braid-agent-ours")}, merge)
			},
			"more rights": func() error {
				return c.Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: named("mine"), RoleRef: cluster})
			},
			"its account": func() error {
				return c.Patch(t.Context(), &corev1.ServiceAccount{ObjectMeta: inAgents("braid-agent-ours")}, merge)
			},
		} {
			t.Run(name+" "+what, func(t *testing.T) { expect(t, write(), "forbidden") })
		}
	}
	if err := patchStatus(t, own, ours); err != nil {
		t.Errorf("the status of its own plan: %v", err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: inSystem("braid-agent-ours")}
	if err := own.Update(t.Context(), lease); err != nil {
		t.Errorf("its own Lease: %v", err)
	}
}

// The role lets agents create their MPTCPNode. The admission policy keeps them from
// the spec also then, and where a role lets them write more.
func TestAnAgentConfirmsNothingOfItsOwn(t *testing.T) {
	newNodes(t)
	admin := newClient(t, server.Config())
	mine := &v1alpha1.MPTCPNode{ObjectMeta: named("ours")}
	create(t, admin, mine, &rbacv1.ClusterRole{ObjectMeta: named("too-much"), Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"mptcpnodes"}, Verbs: []string{"patch"}},
	}})
	agent := client.NewDryRunClient(newClient(t, agentConfig(t, "ours")))
	patch := func(text string) error {
		return agent.Patch(t.Context(), mine.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(text)))
	}
	const label, forgery = `{"metadata":{"labels":{"a":"b"}}}`, `{"spec":{"confirmed":[{"address":"192.0.2.254","proof":"Node"}]}}`
	expect(t, patch(forgery), "cannot patch resource")
	confirmed := &v1alpha1.MPTCPNodeSpec{Confirmed: []v1alpha1.ConfirmedAddress{{Address: "192.0.2.254", Proof: v1alpha1.AddressProofNode}}}
	const refused = "the spec, which confirms them, is the controller's"
	expect(t, agent.Create(t.Context(), &v1alpha1.MPTCPNode{ObjectMeta: named("ours"), Spec: confirmed}), refused)

	create(t, admin, &rbacv1.ClusterRoleBinding{
		ObjectMeta: named("too-much"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "too-much"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: inAgents("").Namespace, Name: "braid-agent-ours"}},
	})
	testutil.Retry(t, 30*time.Second, func() error { return patch(label) })
	testutil.Retry(t, 30*time.Second, func() error { // the controller has judged it
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(mine), mine); err != nil || mine.Spec != nil {
			return err
		}
		return errors.New("it has no spec")
	})
	expect(t, patch(label), "")
	expect(t, patch(forgery), refused)
	expect(t, patch(`{"spec":null}`), refused)
}

// requestToken asks for a token of an account.
func requestToken(t *testing.T, c client.Client, account metav1.ObjectMeta, change ...func(*authenticationv1.TokenRequest)) error {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	for _, f := range change {
		f(request)
	}
	return c.SubResource("token").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: account}, request)
}

func TestAStolenTokenGetsTokensOfItsOwnNodeAlone(t *testing.T) {
	newNodes(t)
	own := newClient(t, agentConfig(t, "ours"))
	shared, unbound := newClient(t, sharedConfig(t, "ours")), newClient(t, sharedConfig(t, ""))
	if err := requestToken(t, shared, inAgents("braid-agent-ours")); err != nil {
		t.Errorf("its own: %v", err)
	}
	long := func(r *authenticationv1.TokenRequest) { r.Spec.ExpirationSeconds = new(int64(3601)) }
	expect(t, requestToken(t, shared, inAgents("braid-agent-ours"), long), "valid for an hour at most")
	expect(t, requestToken(t, shared, inAgents("braid-agent-theirs")), "may have tokens of braid-agent-ours, not of braid-agent-theirs")
	expect(t, requestToken(t, own, inAgents("braid-agent-theirs")), "cannot create resource")
	for _, account := range []string{"braid-agent", "braid-controller"} {
		expect(t, requestToken(t, shared, inSystem(account)), "cannot create resource")
		expect(t, requestToken(t, own, inSystem(account)), "cannot create resource")
	}
	expect(t, requestToken(t, own, inAgents("braid-agent-ours")), "cannot create resource")
	expect(t, requestToken(t, unbound, inAgents("braid-agent-ours")), "does not name its node")
	elsewhere := metav1.ObjectMeta{Namespace: "kube-system", Name: "braid-agent-ours"}
	expect(t, requestToken(t, shared, elsewhere), "cannot create resource")
}

func TestAStolenTokenIsNobodyElses(t *testing.T) {
	newNodes(t)
	for _, config := range []*rest.Config{sharedConfig(t, "ours"), agentConfig(t, "ours")} {
		for _, user := range []rest.ImpersonationConfig{
			{UserName: "system:serviceaccount:" + systemNamespace + "-agents:braid-agent-theirs"},
			{UserName: "system:serviceaccount:" + systemNamespace + ":braid-controller"},
			{UserName: "system:node:theirs", Groups: []string{"system:nodes"}},
			{UserName: "admin", Groups: []string{"system:masters"}},
			{UserName: "system:serviceaccount:" + systemNamespace + ":braid-agent", Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"theirs"}}},
		} {
			as := rest.CopyConfig(config)
			as.Impersonate = user
			expect(t, answer(t, as, http.MethodGet, "/apis/braid.dev/v1alpha1/mptcpnodeplans"), "cannot impersonate")
		}
	}
}

func TestAnAgentReadsTheConfigMapsThatItsPlanNames(t *testing.T) {
	admin := newClient(t, server.Config())
	newNodes(t)
	create(t, admin, &corev1.ConfigMap{ObjectMeta: inSystem("programs"), BinaryData: map[string][]byte{"mark.o": {1}}})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod"}}
	pod.Spec = corev1.PodSpec{NodeName: "ours", Containers: []corev1.Container{{Name: "main", Image: "none"}}, TerminationGracePeriodSeconds: new(int64(0))}
	policy := &v1alpha1.ClusterMPTCPPolicy{ObjectMeta: named("programs")}
	policy.Spec.NamespaceSelector.MatchLabels = map[string]string{"kubernetes.io/metadata.name": "default"}
	policy.Spec.Programs = []v1alpha1.Program{{Name: "mark", ConfigMap: &v1alpha1.ProgramConfigMap{Name: "programs", Key: "mark.o"}}}
	policy.Spec.Rules = []v1alpha1.Rule{{Name: "mark", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionRunProgram, RunProgram: &v1alpha1.RunProgram{Program: "mark"}}}}}
	create(t, admin, pod, policy)
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.2", PodIPs: []corev1.PodIP{{IP: "10.0.0.2"}}}
	if err := admin.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	ours, theirs := newClient(t, agentConfig(t, "ours")), newClient(t, agentConfig(t, "theirs"))
	read := func(c client.Client, name string) error {
		return c.Get(t.Context(), client.ObjectKey{Namespace: systemNamespace, Name: name}, &corev1.ConfigMap{})
	}
	testutil.Retry(t, 30*time.Second, func() error { return read(ours, "programs") })
	expect(t, read(ours, "settings"), "cannot get resource")
	expect(t, read(theirs, "programs"), "cannot get resource")
	expect(t, ours.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(systemNamespace)), "cannot list resource")

	elsewhere := []byte(`{"spec":{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"kube-public"}}}}`)
	if err := admin.Patch(t.Context(), policy, client.RawPatch("application/merge-patch+json", elsewhere)); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, 30*time.Second, "the right goes with the program", func() bool { return apierrors.IsForbidden(read(ours, "programs")) })
}

func TestIdentitiesGoWithTheirNodeAndWithTheInstallation(t *testing.T) {
	newNodes(t)
	admin := newClient(t, server.Config())
	node := &corev1.Node{ObjectMeta: named("gone")}
	if err := admin.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	agentConfig(t, "gone")
	var role rbacv1.ClusterRole
	if err := admin.Get(t.Context(), client.ObjectKey{Name: "braid-controller"}, &role); err != nil {
		t.Fatal(err)
	}
	objects := func(node string) []client.Object {
		name := "braid-agent-" + node
		return []client.Object{
			&rbacv1.ClusterRole{ObjectMeta: named(name)}, &rbacv1.ClusterRoleBinding{ObjectMeta: named(name)},
			&rbacv1.Role{ObjectMeta: inSystem(name)}, &rbacv1.RoleBinding{ObjectMeta: inSystem(name)}, &corev1.ServiceAccount{ObjectMeta: inAgents(name)},
		}
	}
	for _, object := range objects("gone") {
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			t.Error(err)
		}
		owners := object.GetOwnerReferences()
		if len(owners) != 1 || owners[0].UID != role.UID || owners[0].Kind != "ClusterRole" {
			t.Errorf("%T %s belongs to %v, want the controller's ClusterRole", object, object.GetName(), owners)
		}
	}
	if err := admin.Delete(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	for _, object := range objects("gone") {
		testutil.Eventually(t, 30*time.Second, fmt.Sprintf("%T goes", object), func() bool {
			return apierrors.IsNotFound(admin.Get(t.Context(), client.ObjectKeyFromObject(object), object))
		})
	}
	for _, object := range objects("theirs") {
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			t.Error(err)
		}
	}
}

func TestTheControllerHandsOutNothingButWhatAgentsNeed(t *testing.T) {
	newNodes(t)
	agentConfig(t, "ours")
	config, err := server.ServiceAccountConfig(t.Context(), systemNamespace, "braid-controller", "")
	if err != nil {
		t.Fatal(err)
	}
	c := client.NewDryRunClient(newClient(t, config))
	lease := &coordinationv1.Lease{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(&coordinationv1.Lease{ObjectMeta: inSystem("braid-agent-theirs")}), lease); err != nil {
		t.Fatal(err)
	}
	binding := func(name, role, subject string) *rbacv1.ClusterRoleBinding {
		return &rbacv1.ClusterRoleBinding{
			ObjectMeta: named(name), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: systemNamespace, Name: subject}},
		}
	}
	secrets := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"list"}}}
	pods := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}}
	for name, test := range map[string]struct {
		write   func() error
		refused string
	}{
		"what it has not itself": {func() error {
			return c.Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: named("braid-agent-x"), Rules: secrets})
		}, "attempting to grant RBAC permissions not currently held"},
		"a role of another name": {func() error {
			return c.Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: named("x"), Rules: pods})
		}, "the controller may not write clusterroles x"},
		"another's role": {func() error {
			return c.Update(t.Context(), &rbacv1.ClusterRole{ObjectMeta: named("system:discovery"), Rules: pods})
		}, "the controller may not write clusterroles system:discovery"},
		"the end of another's role": {func() error { return c.Delete(t.Context(), &rbacv1.ClusterRole{ObjectMeta: named("view")}) }, "the controller may not write clusterroles view"},
		"the end of a binding": {func() error {
			return c.Delete(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: named("system:discovery")})
		}, "the controller may not write clusterrolebindings"},
		"the admin's role": {func() error { return c.Create(t.Context(), binding("braid-agent-x", "cluster-admin", "braid-agent-x")) }, "attempting to grant"},
		"its own role": {func() error {
			return c.Create(t.Context(), binding("braid-agent-x", "braid-controller", "braid-agent-x"))
		}, "to that agent's account alone"},
		"another's rights": {func() error {
			return c.Create(t.Context(), binding("braid-agent-ours", "braid-agent-ours", "braid-agent-theirs"))
		}, "to that agent's account alone"},
		"its own account": {func() error {
			return c.Delete(t.Context(), &corev1.ServiceAccount{ObjectMeta: inSystem("braid-controller")})
		}, "cannot delete resource"},
		"an agent's status": {func() error { return patchStatus(t, c, &v1alpha1.MPTCPNodePlan{ObjectMeta: named("ours")}) }, "the controller may not write mptcpnodeplans"},
		"an agent's Lease": {func() error {
			return c.Update(t.Context(), lease)
		}, "the controller may not write leases"},
		"an agent's account": {func() error { return requestToken(t, c, inAgents("braid-agent-ours")) }, "cannot create resource"},
	} {
		t.Run(name, func(t *testing.T) { expect(t, test.write(), test.refused) })
	}
}
