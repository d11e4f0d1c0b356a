// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
		{"policies", pointers(o.Policies)}, {"cluster policies", pointers(o.ClusterPolicies)}, {"pods", pointers(o.Pods)},
	} {
		var done atomic.Int64
		stop := every(sayEvery, func() { say("%s: %d of %d", kind.name, done.Load(), len(kind.objects)) })
		err := eachOf(kind.objects, func(object client.Object) error {
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

// eachOf calls a function for each element, several at a time, until one fails.
func eachOf[T any](elements []T, f func(T) error) error {
	var (
		wait  sync.WaitGroup
		next  atomic.Int64
		first atomic.Pointer[error]
	)
	for range writers {
		wait.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(elements)) && first.Load() == nil; i = next.Add(1) - 1 {
				if err := f(elements[i]); err != nil {
					first.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wait.Wait()
	if err := first.Load(); err != nil {
		return *err
	}
	return nil
}

// every calls a function again and again until the returned one is called.
func every(interval time.Duration, f func()) (stop func()) {
	ended := make(chan struct{})
	ticker := time.NewTicker(interval)
	go func() {
		for {
			select {
			case <-ended:
				return
			case <-ticker.C:
				f()
			}
		}
	}()
	return func() { ticker.Stop(); close(ended) }
}
