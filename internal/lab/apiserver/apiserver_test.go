// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/apiserver"
	"braid.dev/braid/internal/testutil"
)

// childVariable makes the test binary a process that starts a server in the
// directory it names, prints the directory and waits to be killed.
const childVariable = "BRAID_APISERVER_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir, ok := os.LookupEnv(childVariable); ok {
		child(dir)
	}
	os.Exit(m.Run())
}

func child(dir string) {
	server, err := apiserver.Start(context.Background(), apiserver.Options{Dir: dir, Detach: dir != ""})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(server.Dir())
	select {}
}

func newClient(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	scheme := v1alpha1Scheme(t)
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTheServerKeepsItsDataAndAddressWhenItIsStoppedAndStarted(t *testing.T) {
	server := apiserver.ForTest(t)
	c := newClient(t, server.Config())
	path := &v1alpha1.MPTCPPath{
		ObjectMeta: metav1.ObjectMeta{Name: "blue"},
		Spec:       v1alpha1.MPTCPPathSpec{Interfaces: []v1alpha1.InterfacePattern{"eth1"}},
	}
	if err := c.Create(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if err := server.StopServer(); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(path), path); err == nil {
		t.Fatal("a stopped server answered")
	}
	if err := server.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(path), path); err != nil {
		t.Errorf("the same client after a restart: %v", err)
	}
	if err := newClient(t, server.Config()).Get(t.Context(), client.ObjectKeyFromObject(path), path); err != nil {
		t.Errorf("a new client after a restart: %v", err)
	}
}

func TestAnyUserMayDoWhatRBACAllows(t *testing.T) {
	server := apiserver.ForTest(t)
	admin := newClient(t, server.Config())
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agent"}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}}},
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"},
		Subjects: []rbacv1.Subject{
			{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "alice"},
			{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "agent"},
		},
	}
	for _, object := range []client.Object{account, node, role, binding} {
		if err := admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	accountConfig, err := server.ServiceAccountConfig(t.Context(), "default", "agent", "n1")
	if err != nil {
		t.Fatal(err)
	}
	for name, config := range map[string]*rest.Config{
		"a user":                        server.UserConfig("alice"),
		"a service account":             accountConfig,
		"a service account, kubeconfig": throughKubeconfig(t, accountConfig),
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, config)
			testutil.Eventually(t, 30*time.Second, "what RBAC allows", func() bool {
				return c.Get(t.Context(), client.ObjectKeyFromObject(node), &corev1.Node{}) == nil
			})
			if err := c.List(t.Context(), &corev1.SecretList{}); !apierrors.IsForbidden(err) {
				t.Errorf("what RBAC does not allow: got %v, want Forbidden", err)
			}
		})
	}
}

func throughKubeconfig(t *testing.T, config *rest.Config) *rest.Config {
	t.Helper()
	content, err := apiserver.Kubeconfig(config)
	if err != nil {
		t.Fatal(err)
	}
	read, err := clientcmd.RESTConfigFromKubeConfig(content)
	if err != nil {
		t.Fatal(err)
	}
	return read
}

func TestAServerDiesWithTheProcessThatStartedItAndTheNextRunRemovesItsFiles(t *testing.T) {
	cmd, dir := startChild(t, "")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // It was killed.
	testutil.Eventually(t, 30*time.Second, "its processes are gone", func() bool { return len(processesWith(t, dir)) == 0 })
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("a killed process cannot have removed its files: %v", err)
	}
	apiserver.ForTest(t)
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}

func TestTheNextRunLeavesTheServerOfALivingProcessAlone(t *testing.T) {
	first := apiserver.ForTest(t)
	apiserver.ForTest(t)
	namespaces := &corev1.NamespaceList{}
	if err := newClient(t, first.Config()).List(t.Context(), namespaces); err != nil {
		t.Error(err)
	}
}

func TestADetachedServerOutlivesTheProcessThatStartedItUntilStopDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "server")
	t.Cleanup(func() {
		if err := apiserver.StopDir(dir); err != nil {
			t.Error(err)
		}
	})
	cmd, _ := startChild(t, dir)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // It was killed.

	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	if err := newClient(t, config).List(t.Context(), &corev1.NamespaceList{}); err != nil {
		t.Fatalf("the server did not outlive its parent: %v", err)
	}
	_, err = apiserver.Start(t.Context(), apiserver.Options{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "stop that one first") {
		t.Errorf("a second server in the same directory: got %v", err)
	}
	if err := apiserver.StopDir(dir); err != nil {
		t.Fatal(err)
	}
	if left := processesWith(t, dir); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
	again, err := apiserver.Start(t.Context(), apiserver.Options{Dir: dir})
	if err != nil {
		t.Fatalf("the directory cannot be used again: %v", err)
	}
	if err := again.Stop(); err != nil {
		t.Error(err)
	}
}

func TestMissingBinariesAreReportedWithTheRemedy(t *testing.T) {
	_, err := apiserver.Start(t.Context(), apiserver.Options{BinDir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "hack/kube/build.sh") {
		t.Errorf("got %v, want the command that makes the binaries", err)
	}
}

func TestTheVersionIsTheOneThatIsBuilt(t *testing.T) {
	module, err := os.ReadFile("../../../hack/kube/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("../../../hack/kube/build.sh")
	if err != nil {
		t.Fatal(err)
	}
	if want := "k8s.io/kubernetes " + apiserver.KubernetesVersion; !strings.Contains(string(module), want) {
		t.Errorf("hack/kube/go.mod does not require %s", want)
	}
	if want := "\nversion=" + strings.TrimPrefix(apiserver.KubernetesVersion, "v") + "\n"; !strings.Contains(string(script), want) {
		t.Errorf("hack/kube/build.sh does not say %q", want)
	}
}

// startChild starts a process that starts a server, and returns the server's
// directory once it is ready.
func startChild(t *testing.T, dir string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+dir)
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // Most tests have killed it by then.
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil || !filepath.IsAbs(line) {
		t.Fatalf("the child did not start a server: %q, %v", line, err)
	}
	return cmd, strings.TrimSpace(line)
}

// processesWith lists the command lines that mention the directory.
func processesWith(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(content), dir) {
			found = append(found, string(content))
		}
	}
	return found
}
