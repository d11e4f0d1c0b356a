// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// writers is how many objects are written at a time.
const writers = 16

// sayEvery is how often progress is told.
const sayEvery = 10 * time.Second

// Create writes the objects by a client, pods with their status, and tells by say
// how far it is. What the API server fills in is in the objects afterwards.
func (o *Objects) Create(ctx context.Context, c client.Client, say func(format string, args ...any)) error {
	for _, kind := range []struct {
		name    string
		objects []client.Object
	}{
		{"paths", pointers(o.Paths)}, {"namespaces", pointers(o.Namespaces)}, {"nodes", pointers(o.Nodes)},
		{"policies", pointers(o.Policies)}, {"cluster policies", pointers(o.ClusterPolicies)}, {"guardrails", pointers(o.Guardrails)}, {"pods", pointers(o.Pods)},
	} {
		var done atomic.Int64
		telling, stop := context.WithCancel(ctx)
		go wait.UntilWithContext(telling, func(context.Context) {
			say("%s: %d of %d", kind.name, done.Load(), len(kind.objects))
		}, sayEvery)
		err := eachOf(ctx, kind.objects, func(ctx context.Context, object client.Object) error {
			defer done.Add(1)
			return create(ctx, c, object, say)
		})
		stop()
		if err != nil {
			return fmt.Errorf("creating %s: %w", kind.name, err)
		}
	}
	return nil
}

func create(ctx context.Context, c client.Client, object client.Object, say func(format string, args ...any)) error {
	pod, is := object.(*corev1.Pod)
	var status corev1.PodStatus
	if is {
		status = pod.Status // Creation answers with an empty one.
	}
	err := Persist(ctx, say, func(again bool) error {
		err := c.Create(ctx, object)
		if again && apierrors.IsAlreadyExists(err) {
			return c.Get(ctx, client.ObjectKeyFromObject(object), object)
		}
		return err
	})
	if err != nil || !is {
		return err
	}
	return Persist(ctx, say, func(again bool) error {
		if again {
			if err := c.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
				return err
			}
		}
		pod.Status = status
		return c.Status().Update(ctx, pod)
	})
}

// pointers lists the elements of a slice as objects.
func pointers[T any, P interface {
	*T
	client.Object
}](elements []T) []client.Object {
	objects := make([]client.Object, 0, len(elements))
	for i := range elements {
		objects = append(objects, P(&elements[i]))
	}
	return objects
}

// eachOf calls a function for each element, several at a time. Once one fails the
// context of the others ends.
func eachOf[T any](ctx context.Context, elements []T, f func(context.Context, T) error) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(writers)
	for _, element := range elements {
		all.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return f(ctx, element)
		})
	}
	return all.Wait()
}
