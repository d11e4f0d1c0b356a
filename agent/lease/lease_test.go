// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/agent/lease"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/apiserver"
)

// asked is a transport that keeps the methods of the requests for Leases.
type asked struct {
	next    http.RoundTripper
	methods []string
}

func (a *asked) RoundTrip(request *http.Request) (*http.Response, error) {
	if strings.Contains(request.URL.Path, "/leases") {
		a.methods = append(a.methods, request.Method)
	}
	return a.next.RoundTrip(request)
}

func TestALeaseIsReadOnlyWhenItIsNotKnown(t *testing.T) {
	server := apiserver.ForTest(t)
	others, err := client.New(server.Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "leases"}}
	if err := others.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	requests := &asked{}
	config := rest.CopyConfig(server.Config())
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		requests.next = next
		return requests
	})
	own, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	holder := lease.Holder{Client: own, Reader: own, Namespace: namespace.Name, Node: "node1"}
	object := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: v1alpha1.AgentLeasePrefix + "node1"}}
	read := func() error { return others.Get(t.Context(), client.ObjectKeyFromObject(object), object) }
	for _, step := range []struct {
		what   string
		first  func() error
		wanted []string
	}{
		{"there is none", nil, []string{"GET", "PUT"}},
		{"it is known", nil, []string{"PUT"}},
		{"somebody else has written it", func() error {
			object.Spec.HolderIdentity = new("somebody else")
			return others.Update(t.Context(), object)
		}, []string{"PUT", "GET", "PUT"}},
		{"it is known again", nil, []string{"PUT"}},
		{"it was deleted", func() error { return others.Delete(t.Context(), object) }, []string{"PUT", "GET", "PUT"}},
	} {
		t.Run(step.what, func(t *testing.T) {
			before := time.Now()
			if step.first != nil {
				if err := step.first(); err != nil {
					t.Fatal(err)
				}
			}
			requests.methods = nil
			if err := holder.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(requests.methods, step.wanted) {
				t.Errorf("the requests were %v, not %v", requests.methods, step.wanted)
			}
			if err := read(); err != nil {
				t.Fatal(err)
			}
			if *object.Spec.HolderIdentity != "node1" || object.Spec.RenewTime.Before(&metav1.MicroTime{Time: before.Truncate(time.Microsecond)}) {
				t.Errorf("the Lease is %+v", object.Spec)
			}
		})
	}
}
