// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"

	"braid.dev/braid/internal/output"
)

// Event is something that Braid reported of an object.
type Event struct {
	// Time is when it happened, for one that was repeated the last time.
	Time time.Time `json:"time"`
	// Type is Normal, Warning or, for what rules report, Subflow.
	Type   string `json:"type"`
	Reason string `json:"reason"`
	// Kind, Namespace and Name are of the object.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Message   string `json:"message"`
	// Count is how often it happened, where that was more than once.
	Count int32 `json:"count,omitempty"`
	// Node is where a rule reported it.
	Node string `json:"node,omitempty"`

	policy, path string // of what a rule reported
}

// typeSubflow marks what rules report.
const typeSubflow = "Subflow"

// reporter is what Braid's controller calls itself in Events.
const reporter = "braid-controller"

// eventOptions say which events to show.
type eventOptions struct {
	systemNamespace, namespace string
	of                         string
	kind                       kind
	name                       string
	subflows, watch            bool
}

func (p *plugin) eventsCommand() *cobra.Command {
	var options eventOptions
	command := &cobra.Command{
		Use:   "events",
		Short: "List what Braid reported of policies, paths, nodes and pods, in the order of time",
		Example: "  kubectl braid events --namespace shop\n  kubectl braid events --for mpol/spread --watch\n" +
			"  kubectl braid events --subflows --for pod/web-0",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := p.selectEvents(&options); err != nil {
				return err
			}
			return p.events(command.Context(), options, func(err error) {
				fmt.Fprintln(command.ErrOrStderr(), "kubectl braid:", err)
			})
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.of, "for", "", "list those of this KIND/NAME alone")
	flags.BoolVar(&options.subflows, "subflows", false, "list also the connections and subflows that rules reported")
	flags.BoolVarP(&options.watch, "watch", "w", false, "go on with those to come")
	addSystem(command, &options.systemNamespace)
	mustComplete(command, "for", p.objectNames)
	return p.addFormat(command)
}

func (p *plugin) selectEvents(options *eventOptions) error {
	namespace, given, err := p.namespace()
	if err != nil {
		return err
	}
	if given {
		options.namespace = namespace
	}
	if options.of == "" {
		return nil
	}
	if options.kind, options.name, err = parseObject(options.of); err != nil {
		return fmt.Errorf("--for=%s: %w", options.of, err)
	}
	if !options.kind.namespaced() {
		options.namespace = "" // Events of the cluster's objects are in default
	}
	return nil
}

// events tells warn of agents that do not answer.
func (p *plugin) events(ctx context.Context, options eventOptions, warn func(error)) error {
	if _, err := p.connect(ctx); err != nil {
		return err
	}
	s, err := p.system(options.systemNamespace)
	if err != nil {
		return err
	}
	reader := &eventReader{system: s, options: options}
	found, version, err := reader.list(ctx)
	if apierrors.IsForbidden(err) && options.namespace == "" && (options.of == "" || options.kind.namespaced()) {
		if reader.options.namespace, _, err = p.namespace(); err != nil {
			return err
		}
		warn(fmt.Errorf("you may not read the Events of all namespaces: those of %s", reader.options.namespace))
		found, version, err = reader.list(ctx)
	}
	if err != nil {
		return err
	}
	var unread error
	if options.subflows {
		more, err := reader.reported(ctx)
		if err != nil {
			warn(err)
			unread = ErrNotFine
		}
		found = append(found, more...)
	}
	sortEvents(found)
	if options.watch {
		return p.watchEvents(ctx, reader, found, version, warn)
	}
	return errors.Join(p.print(found, func() string { return eventsText(found) }), unread)
}

// watchEvents prints what is there and what comes, until the context ends.
func (p *plugin) watchEvents(ctx context.Context, reader *eventReader, found []Event, version string, warn func(error)) error {
	for i := range found {
		if err := writeEvent(p.out, p.format, &found[i]); err != nil {
			return err
		}
	}
	incoming, failed := make(chan Event), make(chan error, 1)
	go func() { failed <- reader.watch(ctx, version, incoming) }()
	if reader.options.subflows {
		go reader.followReported(ctx, latestByNode(found), incoming, warn)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case event := <-incoming:
			if err := writeEvent(p.out, p.format, &event); err != nil {
				return err
			}
		}
	}
}

// eventReader reads Events of the API server, and what the agents keep.
type eventReader struct {
	system  *system
	options eventOptions
}

// mine has the API server leave out what others reported.
func mine() metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: "reportingController=" + reporter}
}

// list reads what is there, and returns the version to watch from.
func (r *eventReader) list(ctx context.Context) ([]Event, string, error) {
	list, err := r.system.core.EventsV1().Events(r.options.namespace).List(ctx, mine())
	if err != nil {
		return nil, "", fmt.Errorf("reading events: %w", err)
	}
	found := []Event{}
	for i := range list.Items {
		if event := eventOf(&list.Items[i]); r.wants(&event) {
			found = append(found, event)
		}
	}
	return found, list.ResourceVersion, nil
}

func eventOf(e *eventsv1.Event) Event {
	event := Event{
		Time: e.EventTime.Time, Type: e.Type, Reason: e.Reason, Message: e.Note,
		Kind: e.Regarding.Kind, Namespace: e.Regarding.Namespace, Name: e.Regarding.Name,
	}
	if event.Time.IsZero() {
		event.Time = cmp.Or(e.DeprecatedLastTimestamp.Time, e.CreationTimestamp.Time)
	}
	if e.Series != nil {
		event.Time, event.Count = e.Series.LastObservedTime.Time, e.Series.Count
	}
	return event
}

// wants is true for what was asked for.
func (r *eventReader) wants(e *Event) bool {
	o := &r.options
	if o.namespace != "" && e.Namespace != o.namespace {
		return false
	}
	if o.of == "" || e.Kind == o.kind.name && e.Name == o.name {
		return true
	}
	switch o.kind.name {
	case "MPTCPPath":
		return e.path == o.name
	case "Node", "MPTCPNode", "MPTCPNodePlan":
		return e.Node == o.name
	}
	kind, _, _ := strings.Cut(e.policy, "/")
	return kind == o.kind.name && afterLast(e.policy, "/") == o.name
}

// watch sends what the API server reports from a version on, until the context ends.
func (r *eventReader) watch(ctx context.Context, version string, incoming chan<- Event) error {
	watcher, err := watchtools.NewRetryWatcherWithContext(ctx, version, eventWatcher{r})
	if err != nil {
		return fmt.Errorf("watching events: %w", err)
	}
	defer watcher.Stop()
	for change := range watcher.ResultChan() {
		switch object := change.Object.(type) {
		case *eventsv1.Event:
			if event := eventOf(object); change.Type != watch.Deleted && r.wants(&event) {
				send(ctx, incoming, event)
			}
		case *metav1.Status:
			return fmt.Errorf("watching events: %w", apierrors.FromObject(object))
		}
	}
	return ctx.Err()
}

func send(ctx context.Context, incoming chan<- Event, event Event) {
	select {
	case incoming <- event:
	case <-ctx.Done():
	}
}

// eventWatcher watches as the retry watcher wants it.
type eventWatcher struct{ *eventReader }

// WatchWithContext implements cache.WatcherWithContext.
func (w eventWatcher) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.FieldSelector = mine().FieldSelector
	return w.system.core.EventsV1().Events(w.options.namespace).Watch(ctx, options)
}

func sortEvents(events []Event) {
	slices.SortStableFunc(events, func(a, b Event) int { return a.Time.Compare(b.Time) })
}

func (e *Event) object() string {
	if e.Namespace == "" || e.Kind == "" {
		return oneLine(e.Kind + " " + e.Name)
	}
	return oneLine(e.Kind + " " + e.Namespace + "/" + e.Name)
}

// eventTime is local, as clocks on walls are.
func (e *Event) eventTime() string { return e.Time.Local().Format("2006-01-02 15:04:05") }

func (e *Event) message() string {
	if e.Count > 1 {
		return fmt.Sprintf("%s (%d times)", e.Message, e.Count)
	}
	return e.Message
}

// oneLine keeps what others wrote from looking as if it were lines of its own.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func eventsText(found []Event) string {
	if len(found) == 0 {
		return "nothing was reported; the API server keeps events for an hour unless told otherwise\n"
	}
	rows := [][]string{{"TIME", "TYPE", "REASON", "OBJECT", "MESSAGE"}}
	for i := range found {
		e := &found[i]
		rows = append(rows, []string{e.eventTime(), e.Type, oneLine(e.Reason), e.object(), oneLine(e.message())})
	}
	return table(rows...)
}

// writeEvent writes one of those that come one after the other.
func writeEvent(out io.Writer, format output.Format, e *Event) error {
	var err error
	if format == output.Text {
		_, err = fmt.Fprintln(out, printable(fmt.Sprintf("%s  %-8s %-20s %-40s %s", e.eventTime(), e.Type, oneLine(e.Reason), e.object(), oneLine(e.message()))))
	} else {
		err = format.WriteNext(out, e)
	}
	if err != nil {
		return fmt.Errorf("writing an event: %w", err)
	}
	return nil
}
