// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
)

func TestAPlanSaysHowAndWhenSubflowsAreOpened(t *testing.T) {
	addresses := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}
	wanted := &node.Endpoint{Addresses: addresses, PlanEndpoint: &v1alpha1.PlanEndpoint{
		Paths:  []v1alpha1.PathWeight{{Path: "blue"}, {Path: "green"}, {Path: "red"}},
		Backup: []v1alpha1.PathName{"red"},
		Subflows: v1alpha1.PlanSubflows{
			Manager: v1alpha1.SubflowManagerAgent, Count: 8, Mode: v1alpha1.SubflowModeFullMesh,
			OpenAfterBytes: 256 << 10, OpenAfterMillis: 500, Reopen: v1alpha1.ReopenNever,
		},
		Transport: &v1alpha1.Transport{InactivityTimeout: &metav1.Duration{Duration: 5 * time.Minute}, ReceiveBuffer: resource.NewQuantity(1<<20, resource.BinarySI)},
	}}
	want := Settings{
		Manager: v1alpha1.SubflowManagerAgent, Count: 8, Mode: v1alpha1.SubflowModeFullMesh, EachPair: 2,
		Addresses: addresses,
		OpenAfter: OpenAfter{Bytes: 256 << 10, Time: 500 * time.Millisecond},
		Reopen:    v1alpha1.ReopenNever, InactivityTimeout: 5 * time.Minute, ReceiveBuffer: 1 << 20,
	}
	if got := settingsOf(wanted); !reflect.DeepEqual(got, want) {
		t.Errorf("settings are %+v, want %+v", got, want)
	}
}

func TestAPodIsConfiguredWhenItsSettingsChangeAndNowAndThen(t *testing.T) {
	pod := network.NamespaceForTest(t)
	var status unix.Stat_t
	if err := unix.Stat(pod.Path(), &status); err != nil {
		t.Fatal(err)
	}
	found := endpoints.Endpoint{Inode: status.Ino, Path: pod.Path()}
	p := newPods(t)
	settings := Settings{Manager: v1alpha1.SubflowManagerKernel, Count: 3, FirstAnnouncedPort: 47000, Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.1")}}
	steps := []struct {
		name   string
		before func()
		want   string // of the limits
	}{
		{"at first", func() {}, "subflows 2 "},
		{"somebody changes it", func() { setLimits(t, pod) }, "subflows 7 "},
		{"after a while", func() { p.last[found.Inode] = configured{settings: settings, at: time.Now().Add(-recheck)} }, "subflows 2 "},
		{"other settings", func() { setLimits(t, pod); settings.Count = 5 }, "subflows 4 "},
		{"a pod that was let go of", func() { setLimits(t, pod); letGo(t, p, found.Inode) }, "subflows 4 "},
	}
	for _, step := range steps {
		step.before()
		if err := p.configure(t.Context(), &node.Endpoint{PlanEndpoint: &v1alpha1.PlanEndpoint{Namespace: "team", Name: "web"}, Found: &found}, settings); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got, err := pod.Run("ip", "mptcp", "limits"); err != nil || !strings.Contains(got+" ", step.want) {
			t.Errorf("%s: the limits are %q, not %q (%v)", step.name, got, step.want, err)
		}
	}
}

func newPods(t *testing.T) *Pods {
	t.Helper()
	p := NewPods(PodsOptions{StatePath: t.TempDir(), ProcPath: "/proc", Log: testr.New(t)})
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestARecordIsDroppedWhenACompleteLookDoesNotFindThePod(t *testing.T) {
	pod, p := network.NamespaceForTest(t), newPods(t)
	var status unix.Stat_t
	if err := unix.Stat(pod.Path(), &status); err != nil {
		t.Fatal(err)
	}
	endpoint := node.Endpoint{
		PlanEndpoint: &v1alpha1.PlanEndpoint{UID: "1", Subflows: v1alpha1.PlanSubflows{Manager: v1alpha1.SubflowManagerAgent, Count: 2}},
		Found:        &endpoints.Endpoint{Inode: status.Ino, Path: pod.Path()},
	}
	invalid := endpoint
	invalid.PlanEndpoint = &v1alpha1.PlanEndpoint{UID: "1", Subflows: v1alpha1.PlanSubflows{Manager: v1alpha1.SubflowManagerAgent, Count: 9}}
	for _, step := range []struct {
		name     string
		model    node.Model
		done     bool
		recorded int
		open     int
	}{
		{"settings that cannot be", node.Model{Endpoints: []node.Endpoint{invalid}}, false, 0, 1},
		{"a pod that was found", node.Model{Endpoints: []node.Endpoint{endpoint}}, true, 1, 1},
		{"a look that was not complete", node.Model{}, true, 1, 1},
		{"a look that was complete", node.Model{LookComplete: true}, true, 0, 0},
	} {
		report := p.Apply(t.Context(), &step.model)
		recorded, err := Recorded(p.options.StatePath, nil)
		if err != nil || report.Done() != step.done || len(recorded) != step.recorded || len(p.managed) != step.open {
			t.Errorf("%s: reported is %+v, recorded are %v, and open are %v (%v)", step.name, report, recorded, p.managed, err)
		}
	}
}

func setLimits(t *testing.T, pod *network.Namespace) {
	t.Helper()
	if _, err := pod.Run("ip", "mptcp", "limits", "set", "subflows", "7"); err != nil {
		t.Fatal(err)
	}
}

func letGo(t *testing.T, p *Pods, inode uint64) {
	t.Helper()
	if err := p.close(inode); err != nil {
		t.Fatal(err)
	}
}

func TestAPodThatCouldNotBeConfiguredIsLetGoOf(t *testing.T) {
	pod, p := network.NamespaceForTest(t), newPods(t)
	if err := pod.Sysctl("net.mptcp.enabled", "0"); err != nil {
		t.Fatal(err)
	}
	var status unix.Stat_t
	if err := unix.Stat(pod.Path(), &status); err != nil {
		t.Fatal(err)
	}
	endpoint := node.Endpoint{
		PlanEndpoint: &v1alpha1.PlanEndpoint{UID: "1", Subflows: v1alpha1.PlanSubflows{Manager: v1alpha1.SubflowManagerAgent, Count: 2}},
		Found:        &endpoints.Endpoint{Inode: status.Ino, Path: pod.Path()},
	}
	report := p.Apply(t.Context(), &node.Model{Endpoints: []node.Endpoint{endpoint}, LookComplete: true})
	if report.Done() {
		t.Error("a pod without MPTCP counts as configured")
	}
	p.Apply(t.Context(), &node.Model{LookComplete: true})
	if len(p.managed) > 0 {
		t.Errorf("the network namespace of a pod that is gone is held for good: %v", p.managed)
	}
}
