// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// follower is a reader that reads each list once, and from then on answers from what it
// watched. So a cluster can be read again and again, and the API server tells changes alone.
// It is safe for concurrent use; what it answers shares memory and must not be changed.
type follower struct {
	client.WithWatch
	// changed gets something when there is something new.
	changed chan struct{}

	mutex sync.Mutex
	lists map[listKey]*followed
	got   map[getKey]got
	// failed says why what is known may be old, by the lists.
	failed map[listKey]error
}

type listKey struct {
	kind      reflect.Type
	namespace string
}

// followed is a list as it is now.
type followed struct {
	mutex     sync.Mutex
	read      bool
	kind      reflect.Type
	namespace string
	version   string
	objects   map[client.ObjectKey]runtime.Object
	// refused is why it may not be read.
	refused error
}

type getKey struct {
	kind reflect.Type
	key  client.ObjectKey
}

type got struct {
	at     time.Time
	object client.Object
	err    error
}

func newFollower(c client.WithWatch) *follower {
	return &follower{
		WithWatch: c, changed: make(chan struct{}, 1),
		lists: map[listKey]*followed{}, got: map[getKey]got{}, failed: map[listKey]error{},
	}
}

// List answers from memory but for the first time. Options other than a namespace are not
// followed.
func (f *follower) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	var asked client.ListOptions
	asked.ApplyOptions(options)
	if asked.LabelSelector != nil || asked.FieldSelector != nil || asked.Limit != 0 {
		return f.WithWatch.List(ctx, into, options...)
	}
	key := listKey{reflect.TypeOf(into).Elem(), asked.Namespace}
	f.mutex.Lock()
	list := f.lists[key]
	if list == nil {
		list = &followed{kind: key.kind, namespace: key.namespace}
		f.lists[key] = list
	}
	f.mutex.Unlock()
	list.mutex.Lock()
	defer list.mutex.Unlock()
	if !list.read {
		if err := list.list(ctx, f.WithWatch); err != nil {
			return err
		}
	}
	return list.answer(into)
}

// getAgain is how long an object that is got by its name counts as new.
const getAgain = 5 * time.Second

// Get answers from memory for a moment, and while the API server does not answer.
func (f *follower) Get(ctx context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	of := getKey{reflect.TypeOf(into).Elem(), key}
	f.mutex.Lock()
	known, ok := f.got[of]
	f.mutex.Unlock()
	if !ok || time.Since(known.at) > getAgain {
		object := reflect.New(of.kind).Interface().(client.Object)
		err := f.WithWatch.Get(ctx, key, object)
		if f.note(listKey{of.kind, key.String()}, err) && ok {
			object, err = known.object, known.err
		}
		known = got{time.Now(), object, err}
		f.mutex.Lock()
		f.got[of] = known
		f.mutex.Unlock()
	}
	if known.err == nil {
		reflect.ValueOf(into).Elem().Set(reflect.ValueOf(known.object).Elem())
	}
	return known.err
}

// follow watches all that was read, until the context ends.
func (f *follower) follow(ctx context.Context) {
	var watches sync.WaitGroup
	defer watches.Wait()
	watched := map[listKey]bool{}
	ticker := time.NewTicker(watchAgain)
	defer ticker.Stop()
	for {
		f.mutex.Lock()
		for key, list := range f.lists {
			if !watched[key] {
				watched[key] = true
				watches.Go(func() { f.watch(ctx, key, list) })
			}
		}
		f.mutex.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C: // what was read meanwhile
		}
	}
}

// watchAgain is when a list is read again that could not be watched, refusedAgain one that
// may not be read.
const watchAgain, refusedAgain = 3 * time.Second, 30 * time.Second

// watch keeps a list up to date. Where it may be listed and not watched, it is listed.
func (f *follower) watch(ctx context.Context, key listKey, list *followed) {
	for ctx.Err() == nil {
		err := list.watch(ctx, f.WithWatch, f.wake)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			f.note(key, err)
			wait := watchAgain
			if apierrors.IsForbidden(err) || meta.IsNoMatchError(err) {
				wait = refusedAgain
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			list.mutex.Lock()
			err = list.list(ctx, f.WithWatch)
			list.mutex.Unlock()
		}
		f.note(key, err)
		f.wake()
	}
}

// note keeps why a list may be old, and is true then; what must not or cannot be watched is
// not old.
func (f *follower) note(key listKey, err error) (old bool) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	delete(f.failed, key)
	if err == nil || apierrors.IsForbidden(err) || isExpired(err) || meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return false
	}
	if !errors.Is(err, context.Canceled) { // by whoever asks
		f.failed[key] = err
	}
	return true
}

// stale says why what is known may be old; empty where it is not.
func (f *follower) stale() string {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for _, err := range f.failed {
		return err.Error()
	}
	return ""
}

func (f *follower) wake() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// list reads all. The caller has the mutex.
func (l *followed) list(ctx context.Context, c client.Client) error {
	found := reflect.New(l.kind).Interface().(client.ObjectList)
	err := c.List(ctx, found, client.InNamespace(l.namespace))
	l.refused = nil
	if apierrors.IsForbidden(err) || meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		l.refused, l.objects, l.version, l.read = err, nil, "", true
		return nil
	}
	if err != nil {
		return err
	}
	objects := map[client.ObjectKey]runtime.Object{}
	err = meta.EachListItem(found, func(item runtime.Object) error {
		object, ok := item.(client.Object)
		if !ok {
			return fmt.Errorf("an item is %T", item)
		}
		objects[client.ObjectKeyFromObject(object)] = object
		return nil
	})
	if err == nil {
		l.objects, l.version, l.read = objects, found.GetResourceVersion(), true
	}
	return err
}

// answer fills a list. The caller has the mutex.
func (l *followed) answer(into client.ObjectList) error {
	if l.refused != nil {
		return l.refused
	}
	items := make([]runtime.Object, 0, len(l.objects))
	for _, object := range l.objects {
		items = append(items, object)
	}
	sortObjects(items)
	return meta.SetList(into, items)
}

// watch takes in changes until the stream ends, which is no error, or cannot go on.
func (l *followed) watch(ctx context.Context, c client.WithWatch, changed func()) error {
	l.mutex.Lock()
	version, refused := l.version, l.refused
	l.mutex.Unlock()
	if refused != nil {
		return refused // and is tried again
	}
	watcher, err := c.Watch(ctx, reflect.New(l.kind).Interface().(client.ObjectList), client.InNamespace(l.namespace),
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true}})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, open := <-watcher.ResultChan():
			if !open {
				return nil
			}
			if err := l.take(event); err != nil {
				return err
			}
			if event.Type != watch.Bookmark {
				changed()
			}
		}
	}
}

func (l *followed) take(event watch.Event) error {
	if event.Type == watch.Error {
		return apierrors.FromObject(event.Object)
	}
	object, ok := event.Object.(client.Object)
	if !ok {
		return errors.New("the API server sent something that is no object")
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.version = object.GetResourceVersion()
	switch event.Type {
	case watch.Added, watch.Modified:
		l.objects[client.ObjectKeyFromObject(object)] = object
	case watch.Deleted:
		delete(l.objects, client.ObjectKeyFromObject(object))
	}
	return nil
}

func sortObjects(objects []runtime.Object) {
	slices.SortFunc(objects, func(a, b runtime.Object) int {
		x, y := a.(client.Object), b.(client.Object)
		return cmp.Or(strings.Compare(x.GetNamespace(), y.GetNamespace()), strings.Compare(x.GetName(), y.GetName()))
	})
}

func isExpired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }
