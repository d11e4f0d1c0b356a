// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/relayed"
	"braid.dev/braid/internal/testutil"
	"braid.dev/braid/proxy"
)

// served tells the tests' own program, run again inside a node, to be its proxy: it has the
// directory of the agent's list.
const served = "BRAID_TEST_SERVED"

func TestMain(m *testing.M) {
	directory := os.Getenv(served)
	if directory == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	if err := proxy.Serve(ctx, proxy.Options{StatePath: directory, Log: logr.Discard()}, directory, 20*time.Second); err != nil {
		panic(err)
	}
}

// process is a proxy that can be ended.
type process struct {
	*exec.Cmd
	directory string
}

// serve runs the proxy of the client's node as a process of its own.
func (l *lab) serve(t *testing.T) *process {
	t.Helper()
	p := &process{directory: t.TempDir()}
	index := indexOf(t, l.Nodes[0], l.client.HostInterface)
	require.NoError(t, relayed.Write(p.directory, []relayed.Endpoint{{
		Interface: index, Name: "a client", Addresses: addressesOf(l.client),
		Subflows: v1alpha1.PlanSubflows{Manager: v1alpha1.SubflowManagerAgent, Count: 3},
	}}))
	p.Cmd = l.Nodes[0].Command(context.Background(), os.Args[0])
	p.Env, p.Stderr = append(os.Environ(), served+"="+p.directory), os.Stderr
	require.NoError(t, p.Start())
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	return p
}

// awaitRelayed opens connections until they are relayed, or are not.
func (l *lab) awaitRelayed(t *testing.T, version int, want bool) {
	t.Helper()
	address, accepted := listen(t, l.server, version)
	testutil.Retry(t, 10*time.Second, func() error {
		client, err := l.client.DialBy(t.Context(), network.TCP, "tcp", address.String())
		if err != nil {
			return err
		}
		defer client.Close()
		server := <-accepted
		defer server.Close()
		multipath, err := server.MultipathTCP()
		if err == nil && multipath != want {
			err = errors.New("a connection is relayed that was not to be, or is not")
		}
		return err
	})
}

// traces is what a proxy has on the node.
func (l *lab) traces(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, command := range [][]string{
		{"ip", "-br", "link"}, {"ip", "rule"}, {"ip", "-6", "rule"},
		{"ip", "route", "show", "table", "all"}, {"ip", "-6", "route", "show", "table", "all"}, {"nft", "list", "ruleset"},
	} {
		out, err := l.Nodes[0].Run(command[0], command[1:]...)
		require.NoError(t, err)
		all.WriteString(out)
	}
	return all.String()
}

func TestWhatAKilledProxyRelayedEndsAndNewConnectionsAreUntouched(t *testing.T) {
	l := newLab(t)
	before := l.traces(t)
	p := l.serve(t)
	l.awaitRelayed(t, 4, true)
	l.awaitRelayed(t, 6, true)
	require.Contains(t, l.traces(t), relayed.InterfacePrefix)
	client, _ := l.both(t, 4)
	require.NoError(t, p.Process.Kill())
	_ = p.Wait()
	l.awaitRelayed(t, 4, false)
	l.awaitRelayed(t, 6, false)
	expectReset(t, client)
	// As the node's agent does after a while.
	require.NoError(t, l.Nodes[0].Do(func() error {
		dead, _, err := relayed.Dead()
		return errors.Join(err, relayed.Sweep(dead))
	}))
	testutil.Retry(t, 5*time.Second, func() error {
		if now := l.traces(t); now != before {
			return errors.New("left on the node: " + now)
		}
		return nil
	})
}

func TestAProxyThatIsToEndLetsItsConnectionsGoOn(t *testing.T) {
	l := newLab(t)
	before := l.traces(t)
	p := l.serve(t)
	l.awaitRelayed(t, 4, true)
	client, server := l.both(t, 4)
	require.NoError(t, p.Process.Signal(unix.SIGTERM))
	l.awaitRelayed(t, 4, false)
	require.NoError(t, sendAll(client, []byte("all")))
	got, err := io.ReadAll(server)
	require.NoError(t, err)
	require.Equal(t, "all", string(got))
	require.NoError(t, server.Close())
	require.NoError(t, p.Wait())
	require.Equal(t, before, l.traces(t))
}

func TestWhomTheAgentNamesNoMoreIsLeftAlone(t *testing.T) {
	l := newLab(t)
	p := l.serve(t)
	l.awaitRelayed(t, 4, true)
	client, server := l.both(t, 4)
	require.NoError(t, relayed.Write(p.directory, nil))
	l.awaitRelayed(t, 4, false)
	require.NoError(t, sendAll(client, []byte("all")))
	got, err := io.ReadAll(server)
	require.NoError(t, err)
	require.Equal(t, "all", string(got))
}
