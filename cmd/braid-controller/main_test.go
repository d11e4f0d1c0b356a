// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/controllers"
	"braid.dev/braid/internal/lab/apiserver"
	"braid.dev/braid/internal/testutil"
)

// binary is the command, compiled as for a release.
var binary string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "braid-controller-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "braid-controller")
	command := exec.Command("go", "build", "-ldflags", "-X main.version=v9.8.7", "-o", binary, ".")
	if output, err := command.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("%v: %s", err, output))
	}
	return m.Run()
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// insecure takes the certificates that a controller makes for itself.
var insecure = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}

func answers(url, text string, status int) error {
	response, err := insecure.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(response.Body); err != nil {
		return err
	}
	if response.StatusCode != status || !strings.Contains(body.String(), text) {
		return fmt.Errorf("%s answers %s without %q", url, response.Status, text)
	}
	return nil
}

func TestVersionIsTheLinkers(t *testing.T) {
	output, err := exec.Command(binary, "--version").Output()
	if err != nil || string(output) != "braid-controller v9.8.7\n" {
		t.Errorf("got %q, %v", output, err)
	}
}

func TestControllerWorksAndHandsOverWhenItIsTerminated(t *testing.T) {
	server := apiserver.ForTest(t)
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	c, err := client.New(server.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}},
	} {
		if err := c.Create(ctx, object); err != nil {
			t.Fatal(err)
		}
	}

	health, metrics := freeAddress(t), freeAddress(t)
	command := exec.Command(binary, "--kubeconfig", server.KubeconfigPath(), "--namespace", "elsewhere",
		"--health-probe-bind-address", health, "--metrics-bind-address", metrics)
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Process.Kill() }) // fails where the test went well
	testutil.Retry(t, 30*time.Second, func() error {
		return c.Get(ctx, client.ObjectKey{Name: "node-a"}, &v1alpha1.MPTCPNodePlan{})
	})
	testutil.Retry(t, 30*time.Second, func() error { return answers("http://"+health+"/healthz", "ok", http.StatusOK) })
	testutil.Retry(t, 30*time.Second, func() error { return answers("http://"+health+"/readyz", "ok", http.StatusOK) })
	testutil.Retry(t, 30*time.Second, func() error {
		return answers("https://"+metrics+"/metrics", "Unauthorized", http.StatusUnauthorized)
	})

	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := command.Wait(); err != nil {
		t.Errorf("it ended with: %v", err)
	}
	leader := &coordinationv1.Lease{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: "elsewhere", Name: controllers.LeaderElectionID}, leader); err != nil {
		t.Fatal(err)
	}
	if holder := leader.Spec.HolderIdentity; holder != nil && *holder != "" {
		t.Errorf("the Lease is still held by %s", *holder)
	}
}

func TestControllerWithoutAnAPIServerSaysSo(t *testing.T) {
	command := exec.Command(binary, "--kubeconfig", filepath.Join(t.TempDir(), "none"))
	output, err := command.CombinedOutput()
	if err == nil || !bytes.Contains(output, []byte("--kubeconfig")) {
		t.Errorf("got %v and %s", err, output)
	}
}
