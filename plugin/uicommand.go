// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"braid.dev/braid/plugin/ui"
)

func (p *plugin) uiCommand() *cobra.Command {
	var port uint16
	var open bool
	command := &cobra.Command{
		Use:   "ui",
		Short: "Show the cluster on a web page of this machine",
		Long: `Show the cluster on a web page: nodes and their NICs as a map with what these carry, what
goes wrong as it happens, and of each pod its connections and subflows.

The page is served at 127.0.0.1 until Ctrl-C, to whom has the address that is printed. It
uses your rights, changes nothing, stores nothing, and asks for nothing while no browser shows it.`,
		Example: "  kubectl braid ui\n  kubectl braid ui --open\n  kubectl braid ui --port 8080 --context production",
		Args:    cobra.NoArgs,
		RunE:    func(command *cobra.Command, _ []string) error { return p.ui(command.Context(), port, open) },
	}
	command.Flags().Uint16Var(&port, "port", 0, "port of 127.0.0.1 to serve at; 0 for one that is free")
	command.Flags().BoolVar(&open, "open", false, "open it in the browser")
	addSystem(command, &p.systemNamespace)
	return command
}

func (p *plugin) ui(ctx context.Context, port uint16, open bool) error {
	// What goes wrong with a stream is told on the page.
	klog.SetLogger(logr.Discard())
	source, err := p.newUISource(ctx)
	if err != nil {
		return err
	}
	state, err := source.state(ctx)
	if err != nil {
		return err
	}
	server, err := ui.Listen(source, port)
	if err != nil {
		return err
	}
	if err := server.Show(state); err != nil {
		return err
	}
	fmt.Fprintf(p.out, "The page is at %s until you press Ctrl-C.\n", server.Address())
	if open {
		if err := browse(ctx, server.AddressOnce()); err != nil {
			fmt.Fprintf(p.out, "No browser could be opened: %v\n", err)
		}
	}
	return server.Serve(ctx)
}

// browse opens an address in the user's browser.
func browse(ctx context.Context, address string) error {
	command := []string{"xdg-open", address}
	switch runtime.GOOS {
	case "darwin":
		command = []string{"open", address}
	case "windows":
		command = []string{"rundll32", "url.dll,FileProtocolHandler", address}
	}
	running := exec.CommandContext(context.WithoutCancel(ctx), command[0], command[1:]...)
	if err := running.Start(); err != nil {
		return err
	}
	go func() { _ = running.Wait() }() // the browser may live as long as it likes
	return nil
}
