// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"braid.dev/braid/internal/testutil"
)

// newCounted is a follower whose API server counts lists, and answers no Get while it is away.
func newCounted(objects ...client.Object) (f *follower, lists *atomic.Int32, away *atomic.Bool) {
	lists, away = &atomic.Int32{}, &atomic.Bool{}
	c := interceptor.NewClient(fake.NewClientBuilder().WithObjects(objects...).Build(), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			lists.Add(1)
			if _, secret := list.(*corev1.SecretList); secret {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", errors.New("it is not yours"))
			}
			return c.List(ctx, list, options...)
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			if away.Load() {
				return errors.New("no answer")
			}
			return c.Get(ctx, key, object, options...)
		},
	})
	return newFollower(c), lists, away
}

func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func nodesOf(t *testing.T, f *follower) (names []string) {
	t.Helper()
	var list corev1.NodeList
	require.NoError(t, f.List(t.Context(), &list))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

func TestAListIsReadOnceAndThenFollowed(t *testing.T) {
	f, lists, _ := newCounted(node("b"), node("a"))
	require.Equal(t, []string{"a", "b"}, nodesOf(t, f))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); f.follow(ctx) }()
	n := 0
	testutil.Retry(t, 10*time.Second, func() error { // a watch of the fake begins with what comes
		n++
		if err := f.WithWatch.Create(t.Context(), node("c"+string(rune('a'+n%26)))); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		if len(nodesOf(t, f)) < 3 {
			return errors.New("nothing came")
		}
		return nil
	})
	require.NoError(t, f.WithWatch.Delete(t.Context(), node("a")))
	testutil.Eventually(t, 10*time.Second, "what is gone is gone", func() bool { return nodesOf(t, f)[0] == "b" })
	require.EqualValues(t, 1, lists.Load())
	require.Len(t, f.changed, 1, "there is something new")
	stop()
	<-ended
}

func TestWhatMayNotBeReadIsToldAndNotAskedForAgain(t *testing.T) {
	f, lists, _ := newCounted()
	for range 3 {
		require.True(t, apierrors.IsForbidden(f.List(t.Context(), &corev1.SecretList{})))
	}
	require.EqualValues(t, 1, lists.Load())
	require.Empty(t, f.stale(), "what may not be read is not old")
}

func TestWhatWasGotStaysWhileTheAPIServerIsAway(t *testing.T) {
	f, _, away := newCounted(node("a"))
	key := client.ObjectKey{Name: "a"}
	require.NoError(t, f.Get(t.Context(), key, &corev1.Node{}))
	away.Store(true)
	for of, known := range f.got { // as if it had been long ago
		known.at = known.at.Add(-time.Hour)
		f.got[of] = known
	}
	var again corev1.Node
	require.NoError(t, f.Get(t.Context(), key, &again))
	require.Equal(t, "a", again.Name)
	require.Equal(t, "no answer", f.stale())
	require.Error(t, f.Get(t.Context(), client.ObjectKey{Name: "b"}, &again), "what never was read")
}
