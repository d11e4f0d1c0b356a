// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/events"
	"braid.dev/braid/agent/inspect"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/internal/agentapi"
)

// inspection shows users what there is, by the debug commands.
type inspection struct {
	chains *chains.Chains
	log    logr.Logger
	// names and pins tell of pods with rules, node of others too, and events what rules
	// report.
	names *inspect.Directory
	pins  *inspect.Pins
	node  *inspect.Node
	// spreading is what pods' traffic does.
	spreading func() ([]agentapi.Spreading, error)
	events    *events.Log
	// namesFile keeps the names for the time without an agent.
	namesFile, socket string
}

// eventsKept is how many events can be asked for later.
const eventsKept = 4096

func openInspection(options Options, c *chains.Chains, pins string) *inspection {
	i := &inspection{
		chains: c, log: options.Log.WithName("inspect"), events: events.NewLog(eventsKept),
		spreading: options.Spreading,
		namesFile: filepath.Join(options.StatePath, inspect.DirectoryName), socket: filepath.Join(options.StatePath, inspect.SocketName),
	}
	var err error
	if i.names, err = inspect.OpenDirectory(i.namesFile); err != nil {
		i.log.Error(err, "failed to read the names of endpoints that an earlier agent kept")
		i.names, _ = inspect.OpenDirectory("") // of nothing
	}
	i.pins = inspect.NewPins(pins, options.PinPath, i.names)
	i.node = &inspect.Node{Pins: i.pins, Flows: options.Flows}
	return i
}

func (i *inspection) Apply(_ context.Context, model *node.Model) (report node.Report) {
	known, attached := map[uint32]inspect.Endpoint{}, map[types.UID]bool{}
	for _, endpoint := range i.chains.Endpoints() {
		known[endpoint.Number] = inspect.Endpoint{Name: endpoint.Name, Rules: inspect.RuleNames(endpoint.Rules)}
		attached[endpoint.UID] = true
	}
	err := i.names.Set(known)
	if err == nil && len(known) == 0 {
		err = removeFile(i.namesFile)
	}
	if err != nil {
		i.log.Error(err, "failed to keep the names of endpoints: debug commands without an agent show numbers, or what is gone")
	}
	var others []inspect.Pod
	for at := range model.Endpoints {
		if endpoint := &model.Endpoints[at]; endpoint.Found != nil && !endpoint.HasGuest() && !attached[endpoint.UID] {
			others = append(others, inspect.Pod{Endpoint: endpoint.FullName(), Namespace: endpoint.Found.Path})
		}
	}
	i.node.SetPods(others)
	return report
}

// Run answers the debug commands.
func (i *inspection) Run(ctx context.Context) error {
	server := &inspect.Server{Path: i.socket, Source: i.node, Spreading: i.spreading, Events: i.events, Log: i.log}
	if err := server.Start(ctx); err != nil {
		i.log.Error(err, "failed to serve the debug commands: they read the maps alone")
	}
	return nil
}

func (i *inspection) Remove(context.Context) error {
	return errors.Join(removeFile(i.namesFile), removeFile(i.socket))
}

func (i *inspection) Close() error { return nil }

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("failed to remove %s: %w", path, err)
	}
	return nil
}
