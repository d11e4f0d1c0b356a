// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/apiserver"
	"braid.dev/braid/internal/testutil"
)

const pathReader = "braid-path-reader"

// addTenant makes an account that may edit the namespace default, and returns the scene as
// it sees it. The controller that aggregates ClusterRoles does not run here, so the roles
// that it would put together are bound one by one.
func (s *scene) addTenant() *scene {
	s.t.Helper()
	s.installUserRoles()
	s.create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tenant"}}, nil)
	for _, role := range []string{"system:aggregate-to-edit", "system:aggregate-to-view", "braid-edit", "braid-view"} {
		s.create(&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "tenant-"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}, Subjects: tenant(),
		}, nil)
	}
	config, err := s.server.ServiceAccountConfig(s.t.Context(), "default", "tenant", "")
	require.NoError(s.t, err)
	content, err := apiserver.Kubeconfig(config)
	require.NoError(s.t, err)
	file := filepath.Join(s.t.TempDir(), "kubeconfig")
	require.NoError(s.t, os.WriteFile(file, content, 0o600))
	seen := s.in(s.t)
	seen.kubeconfig = file
	return seen
}

func tenant() []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "tenant"}}
}

// installUserRoles creates the roles that the chart has for users.
func (s *scene) installUserRoles() {
	s.t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "config", "rbac", "users.yaml"))
	require.NoError(s.t, err)
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		var role rbacv1.ClusterRole
		require.NoError(s.t, yaml.UnmarshalStrict([]byte(document), &role))
		s.create(&role, nil)
	}
}

// tenantRuns runs a command until RBAC, which needs a moment, lets it do what it is to say.
func (s *scene) tenantRuns(command string, says ...string) string {
	s.t.Helper()
	var out string
	testutil.Retry(s.t, time.Minute, func() (err error) {
		if out, err = s.run(strings.Fields(command)...); err != nil {
			return err
		}
		for _, one := range says {
			if !strings.Contains(out, one) {
				return &missing{one, out}
			}
		}
		return nil
	})
	return out
}

type missing struct{ text, in string }

func (m *missing) Error() string { return "it does not say " + m.text + ":\n" + m.in }

func TestATenantSeesWhatItMayAndIsToldWhatIsLeftOut(t *testing.T) {
	s := newScene(t)
	s.addBraid(time.Hour, "node1")
	s.addWeb()
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "stranger"}}, nil)
	s.create(&v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "stranger", Name: "secret"}}, nil)
	as := s.addTenant()

	out := as.tenantRuns("status", "policies   1 of 1 fine", "What you may read is fine.", "MPTCPPolicies of namespaces other than default",
		"MPTCPNodePlans: what agents say of pods", "Leases of the agents and of the controller")
	require.NotContains(t, out, "secret", "another tenant's policy is not shown")
	require.NotContains(t, out, "Everything is fine")
	out = as.tenantRuns("explain web", "policy: MPTCPPolicy default/spread", "paths, annotations and subflows, which depend on MPTCPPaths")
	require.NotContains(t, out, "has not reported this pod", "that is not known")
	_, err := as.run("paths")
	require.ErrorContains(t, err, pathReader)
	as.tenantRuns("events")
	require.Contains(t, as.warnings.String(), "those of default")
	for _, command := range []string{"top --once", "trace --pod web --to 10.0.0.1:80"} {
		_, err := as.run(strings.Fields(command)...)
		require.ErrorContains(t, err, "forbidden", command)
		require.ErrorContains(t, err, "which rights a command needs", command)
	}

	s.create(&rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: pathReader}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: pathReader}, Subjects: tenant(),
	}, nil)
	as.tenantRuns("explain web", "path blue: weight 1", "subflows: 1", "Left out, because you may not read it:", "MPTCPGuardrails: they may forbid")
	as.tenantRuns("status", "paths      1 of 1 fine")
	out = as.tenantRuns("paths", "MPTCPNodes: the state of NICs")
	require.Regexp(t, `blue +0 +0 +True`, out)
}
