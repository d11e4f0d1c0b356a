// SPDX-License-Identifier: Apache-2.0

// Package lab brings up a small cluster on one machine: a real API server, nodes
// and pods that are network namespaces, the real controller, and one real agent
// for each node. It needs root. Whatever happens to the program that brought it
// up, nothing is left behind, unless the lab is to be kept.
package lab

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/internal/lab/apiserver"
	"braid.dev/braid/internal/lab/network"
)

// Pod is one to be made and registered.
type Pod struct {
	Namespace, Name string
	// Node is the number of its node, from 1.
	Node   int
	Labels map[string]string
	// Serves says that the pod runs a server for traffic on TrafficPort.
	Serves bool
}

// TrafficPort is where serving pods listen.
const TrafficPort = 5001

// Options of a lab.
type Options struct {
	// Name of the lab: small letters and digits.
	Name string
	// Network is what to build; its name and its pods are ignored.
	Network network.Spec
	Pods    []Pod
	// StrayPods has each Node say that its pods have the next one's addresses, as cluster networks
	// leave podCIDRs that do not go by them.
	StrayPods bool
	// SpreadingInterval is how often agents look at what pods' traffic does; 0 for their
	// default.
	SpreadingInterval time.Duration
	// ControllerMetrics is where the controller serves metrics; empty for nowhere.
	ControllerMetrics string
	// Kubelets makes the nodes run real ones, with containerd and kube-proxy, beside
	// a controller manager and a scheduler. Pods is then to be empty, and Braid is
	// not started: both are for whoever uses the cluster.
	Kubelets bool
	// ClusterNetwork is that of a lab with kubelets; native if empty.
	ClusterNetwork ClusterNetwork
	// Images are archives to be imported on every node.
	Images []string
	// Step is told what begins, and returns a function to be called when it is
	// done. Several steps may run at once.
	Step func(what string) (done func(error))
	// Say is told what else is worth knowing.
	Say func(what string)
}

// Lab is a lab that is up.
type Lab struct {
	Name       string
	Network    *network.Network
	Server     *apiserver.Server
	Client     client.Client
	Controller *Process
	// Agents by the names of their nodes.
	Agents map[string]*Process

	options    Options
	repository string
	// clusterBinaries is where kubelet and the rest are; see FetchCluster.
	clusterBinaries string
	flanneld        string // the program, where it is needed
	cilium          string // the directory, where it is needed
	nodes           []*kubeNode
	lock            *os.File
	janitor         *janitor
	pods            []*Process
	children        children
}

// Up brings a lab up. An older one of the same name is removed first.
func Up(ctx context.Context, options Options) (*Lab, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("the lab makes network namespaces: run it as root")
	}
	if options.Step == nil {
		options.Step = func(string) func(error) { return func(error) {} }
	}
	if options.Say == nil {
		options.Say = func(string) {}
	}
	if err := keepInherited(); err != nil {
		return nil, err
	}
	l := &Lab{Name: options.Name, options: options, Agents: map[string]*Process{}}
	if err := l.reserve(ctx); err != nil {
		return nil, err
	}
	if err := l.up(ctx); err != nil {
		return nil, errors.Join(err, l.Down())
	}
	return l, nil
}

// keepInherited keeps the descriptors that this program got from its caller, such as pipes
// and locks, from the programs that it starts: those of a lab that is kept outlive it.
func keepInherited() error {
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("closing the caller's descriptors for the lab's programs: %w", err)
	}
	return nil
}

// reserve claims the lab's name and removes what an earlier lab left.
func (l *Lab) reserve(ctx context.Context) (err error) {
	if l.repository, err = Repository(); err != nil {
		return err
	}
	if l.lock, err = acquire(ctx, l.Name, l.options.Say); err != nil {
		return err
	}
	if _, err := os.Stat(Directory(l.Name)); err == nil {
		l.options.Say("Removing what an earlier run left up")
	}
	if err := teardown(l.Name); err != nil {
		return errors.Join(err, l.lock.Close())
	}
	if l.janitor, err = startJanitor(l.Name, l.lock); err != nil {
		return errors.Join(err, l.lock.Close())
	}
	return nil
}

// step runs a part of the work and tells of it.
func (l *Lab) step(what string, work func() error) error {
	done := l.options.Step(what)
	err := work()
	done(err)
	return err
}

func (l *Lab) up(ctx context.Context) error {
	if err := l.prepareDirectory(); err != nil {
		return err
	}
	if l.options.Kubelets {
		return l.upWithKubelets(ctx)
	}
	var ready errgroup.Group
	ready.Go(func() error {
		return l.step("A Kubernetes API server and its etcd", func() error { return l.startServer(ctx) })
	})
	ready.Go(func() error {
		if err := l.step(l.describeNetwork(), l.buildNetwork); err != nil {
			return err
		}
		return l.step("The controller, the agent and a traffic generator, built from this tree", func() error { return l.buildPrograms(ctx) })
	})
	if err := ready.Wait(); err != nil {
		return err
	}
	if err := l.step("Nodes and pods, registered with the API server", func() error { return l.register(ctx) }); err != nil {
		return err
	}
	return l.step("The controller and one agent for each node", func() error { return l.startBraid(ctx) })
}

func (l *Lab) startServer(ctx context.Context) (err error) {
	l.Server, err = apiserver.Start(ctx, apiserver.Options{
		Dir:       l.path("apiserver"),
		Advertise: l.advertise(),
		Tunnel:    l.tunnel(),
		Detach:    true,
	})
	if err != nil {
		return err
	}
	l.Client, err = newClient(l.Server.Config())
	return err
}

func (l *Lab) describeNetwork() string {
	spec := l.options.Network
	return fmt.Sprintf("%d nodes with %d NICs each, of %d Mbit/s, and %d pods", spec.Nodes, len(spec.Paths), spec.LinkMbit, len(l.options.Pods))
}

func (l *Lab) buildNetwork() (err error) {
	spec := l.options.Network
	spec.Name, spec.PodsPerNode = l.Name, 0
	spec.Racks = max(spec.Racks, l.options.ClusterNetwork.Racks())
	_, cilium := l.ciliumMode()
	spec.NoRoutes = l.flannel() || l.calico() || cilium
	if l.Network, err = network.Build(spec); err != nil {
		return err
	}
	for _, pod := range l.options.Pods {
		if pod.Node < 1 || pod.Node > len(l.Network.Nodes) {
			return fmt.Errorf("pod %s: there is no node %d", pod.Name, pod.Node)
		}
		if _, err := l.Network.Nodes[pod.Node-1].AddPod(pod.Name); err != nil {
			return err
		}
	}
	return nil
}

// Keep leaves the lab up when this program ends. Nothing of the lab may be used
// afterwards.
func (l *Lab) Keep() error {
	return errors.Join(l.janitor.dismiss(), l.lock.Close())
}

// Down removes the lab.
func (l *Lab) Down() error {
	l.children.end()
	if err := teardown(l.Name); err != nil {
		return err // the janitor tries again when this program ends
	}
	return errors.Join(l.janitor.dismiss(), l.lock.Close())
}

// Down removes the lab with this name, whoever brought it up. It is no error when
// there is none.
func Down(ctx context.Context, name string, say func(string)) error {
	lock, err := acquire(ctx, name, say)
	if err != nil {
		return err
	}
	return errors.Join(teardown(name), lock.Close())
}

// teardown needs nothing but the name.
func teardown(name string) error {
	// Agents first, so that they do not take what follows for changes to report.
	err := killMarked(name)
	if _, stat := os.Stat(Directory(name)); stat == nil {
		err = errors.Join(err, apiserver.StopDir(Directory(name)+"/apiserver"))
	}
	err = errors.Join(err, removeCgroups(name), network.Teardown(name), removeDirectory(name))
	if err != nil {
		return fmt.Errorf("removing lab %s: %w", name, err)
	}
	return nil
}
