// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// bgpFiles are what calico-bgp needs of a Calico release besides: its BIRD, and the templates
// by which confd writes BIRD's configuration.
var bgpFiles = []string{"bird", "confd"}

const (
	confdDirectory = "/etc/calico/confd"
	birdConfig     = confdDirectory + "/config/bird.cfg"
	birdPid        = "/run/calico/bird.pid"
	// autonomousSystem is Calico's default, and the router's.
	autonomousSystem = 64512
)

// bgp is whether BIRD makes the routes between the lab's nodes.
func (l *Lab) bgp() bool { return l.options.ClusterNetwork == CalicoBGP }

// reload stands in for runit's sv, by which confd has BIRD read its configuration again.
const reload = "#!/bin/sh\n[ \"$1 $2\" = \"hup bird\" ] && exec kill -HUP \"$(cat " + birdPid + ")\"\n"

// startBIRD starts confd, and BIRD once there is a configuration for it.
func (k *kubeNode) startBIRD(ctx context.Context) error {
	if !k.lab.bgp() {
		return nil
	}
	if err := k.writeConfd(); err != nil {
		return err
	}
	programs, err := filepath.Abs(calicoFile(""))
	if err != nil {
		return fmt.Errorf("finding BIRD: %w", err)
	}
	path := strings.Join([]string{k.path("calico-bin"), programs, os.Getenv("PATH"), "/usr/sbin", "/sbin"}, ":")
	confd, err := k.inside("confd", "env", append([]string{"PATH=" + path}, k.calicoNode("-confd")...)...)
	if err != nil {
		return err
	}
	bird := filepath.Join(programs, "bird")
	err = eventually(ctx, []*Process{confd}, func(ctx context.Context) error {
		all := append(k.enter(), bird, "-p", "-c", birdConfig)
		if out, err := exec.CommandContext(ctx, all[0], all[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("waiting for BIRD's configuration on %s: %w: %s", k.name(), err, out)
		}
		return nil
	})
	if err != nil {
		return err
	}
	_, err = k.inside("bird", bird, "-R", "-s", "/run/calico/bird.ctl", "-P", birdPid, "-d", "-c", birdConfig)
	return err
}

// writeConfd gives the node confd's templates of IPv4, of which Calico has addresses here.
func (k *kubeNode) writeConfd() error {
	own := k.path("own", confdDirectory)
	err := errors.Join(os.MkdirAll(filepath.Join(own, "config"), 0o755), os.MkdirAll(k.path("calico-bin"), 0o755))
	if err != nil {
		return fmt.Errorf("making the directories of BIRD on %s: %w", k.name(), err)
	}
	files := os.DirFS(calicoFile("confd"))
	for _, pattern := range []string{"conf.d/bird*", "templates/bird*"} {
		names, err := fs.Glob(files, pattern)
		if err != nil || len(names) == 0 {
			return fmt.Errorf("%s must have confd's %s: %w", calicoFile("confd"), pattern, errors.Join(err, fs.ErrNotExist))
		}
		for _, name := range names {
			if strings.HasPrefix(filepath.Base(name), "bird6") {
				continue
			}
			content, err := fs.ReadFile(files, name)
			if err == nil {
				err = errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(own, name)), 0o755), os.WriteFile(filepath.Join(own, name), content, 0o644))
			}
			if err != nil {
				return fmt.Errorf("copying confd's %s to %s: %w", name, k.name(), err)
			}
		}
	}
	if err := os.WriteFile(k.path("calico-bin", "sv"), []byte(reload), 0o755); err != nil {
		return fmt.Errorf("writing what reloads BIRD on %s: %w", k.name(), err)
	}
	return nil
}

// startRouter has the first path's router learn the pods of all racks from the nodes, as those
// of data centers do, and tells the nodes of it.
func (l *Lab) startRouter(ctx context.Context, kubectl string) error {
	if !l.bgp() {
		return nil
	}
	config, peers := l.routerConfig()
	if err := os.WriteFile(l.path("router.cfg"), []byte(config), 0o600); err != nil {
		return fmt.Errorf("writing the router's configuration: %w", err)
	}
	apply := exec.CommandContext(ctx, kubectl, "--kubeconfig", l.Server.KubeconfigPath(), "apply", "--filename", "-")
	apply.Stdin = strings.NewReader(peers)
	if out, err := apply.CombinedOutput(); err != nil {
		return fmt.Errorf("telling the nodes of the router: %w: %s", err, out)
	}
	router := l.Network.Routers[l.options.Network.Paths[0]]
	_, err := l.start("bird-router", exec.Command("nsenter", "--net="+router.Path(), calicoFile("bird"), "-d", "-c", l.path("router.cfg"), "-s", l.path("router.ctl")))
	return err
}

// routerConfig is that of the router's BIRD, and the BGPPeers by which the nodes know it.
func (l *Lab) routerConfig() (config, peers string) {
	var nodes, objects strings.Builder
	for _, node := range l.Network.Nodes {
		fmt.Fprintf(&nodes, "protocol bgp %s from node { neighbor %s as %d; }\n", node.NodeName(), node.Address(0, 4), autonomousSystem)
		fmt.Fprintf(&objects, "---\napiVersion: crd.projectcalico.org/v1\nkind: BGPPeer\nmetadata: {name: %s}\nspec: {node: %[1]s, peerIP: %s, asNumber: %d}\n",
			node.NodeName(), node.Router(0, 4), autonomousSystem)
	}
	config = fmt.Sprintf(`router id %s;
protocol device { scan time 2; }
protocol direct { interface "rack*"; }
protocol kernel {
	scan time 2;
	export filter { if source = RTS_BGP then accept; reject; };
}
template bgp node {
	local as %d;
	passive on;
	import all;
	export none;
	gateway recursive;
}
%s`, l.Network.Nodes[0].Router(0, 4), autonomousSystem, nodes.String())
	return config, objects.String()
}
