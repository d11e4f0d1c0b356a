// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"braid.dev/braid/plugin"
)

// secretText is what must not be in a sysdump.
const secretText = "canary-77ab03"

func TestKubectlBraidShowsWhatRuns(t *testing.T) {
	feature := features.New("kubectl braid").
		Setup(applyWorkload).
		Assess("top shows a transfer's subflows on all paths with their rates", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			looked, to := make(chan struct{}), serverAddress(ctx, t, "traffic")+":5001"
			transfers := start(func() (string, error) { return transferUntil(ctx, looked, to) })
			await(t, "top shows other than all paths", func() error { return carriedByTop(ctx) })
			await(t, "top --paths shows other NICs than those that carry it", func() error { return carriedByNICs(ctx) })
			close(looked)
			transfers.wait(t)
			await(t, "a command of top goes on in an agent", noRatesRun)
			return ctx
		}).
		Assess("a sysdump has what each agent shows and no secret", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			mustKubectl(ctx, t, "create", "secret", "generic", "canary", "--namespace", systemNamespace, "--from-literal=key="+secretText)
			defer mustKubectl(ctx, t, "delete", "secret", "canary", "--namespace", systemNamespace)
			files := sysdump(ctx, t)
			for _, node := range cluster.nodes() {
				for _, name := range []string{"subflows.json", "rules.json"} {
					var shown []map[string]any
					if err := json.Unmarshal([]byte(files["nodes/"+node+"/"+name]), &shown); err != nil {
						t.Errorf("%s of %s: %v", name, node, err)
					}
				}
			}
			for name, content := range files {
				if strings.Contains(content, secretText) {
					t.Errorf("%s has a secret", name)
				}
			}
			if files["errors.txt"] != "Everything was read.\n" {
				t.Errorf("not everything was read: %s", files["errors.txt"])
			}
			return ctx
		}).
		Teardown(removePolicies).Feature()
	testenv.Test(t, feature)
}

// transferUntil has the client send by one connection after another until it was looked at, or
// one fails.
func transferUntil(ctx context.Context, looked <-chan struct{}, to string) (out string, err error) {
	for {
		out, err = kubectl(ctx, "exec", "client", "--container", "traffic", "--", "/traffic", "run", to, "--duration", "10s", "--json")
		select {
		case <-looked:
			return out, err
		default:
		}
		if err != nil {
			return out, err
		}
	}
}

// carriedByTop is nil when top shows more than 10 Mbit/s of the client's on each path,
// and names the peer.
func carriedByTop(ctx context.Context) error {
	out, err := run(ctx, pluginBin, "top", "client", "--namespace", "default", "--output", "json")
	if err != nil {
		return err
	}
	var found plugin.Top
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		return err
	}
	carried := map[string]bool{}
	for _, s := range found.Subflows {
		if s.Pod == "default/client" && s.Peer == "default/traffic" && s.RTTMicroseconds > 0 && s.SentBitsPerSecond > 10e6 {
			carried[s.Path] = true
		}
	}
	for _, path := range paths {
		if !carried[path] {
			return fmt.Errorf("%s carries nothing of the client's: %s", path, out)
		}
	}
	return nil
}

// carriedByNICs is nil when top --paths shows more than 10 Mbit/s sent by a NIC of each path,
// most of it by subflows, and as much received by another.
func carriedByNICs(ctx context.Context) error {
	out, err := run(ctx, pluginBin, "top", "--paths", "--output", "json")
	if err != nil {
		return err
	}
	var found plugin.PathUses
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		return err
	}
	sent, received := map[string]string{}, map[string]string{}
	for _, use := range found.Paths {
		if use.Now == nil || use.Now.Subflows == 0 {
			continue
		}
		if now := use.Now; now.SentBitsPerSecond > 10e6 && 2*now.SubflowsSentBitsPerSecond > now.SentBitsPerSecond {
			sent[use.Path] = use.Node
		} else if now.ReceivedBitsPerSecond > 10e6 && 2*now.SubflowsReceivedBitsPerSecond > now.ReceivedBitsPerSecond {
			received[use.Path] = use.Node
		}
	}
	for _, path := range paths {
		if sent[path] == "" || received[path] == "" || sent[path] == received[path] {
			return fmt.Errorf("%s carries nothing from node to node: %s", path, out)
		}
	}
	return nil
}

// noRatesRun looks through the processes of the machine, where the agents' are.
func noRatesRun() error {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, file := range files {
		command, _ := os.ReadFile(file) // of a process that has just ended there is none
		if text := strings.ReplaceAll(string(command), "\x00", " "); strings.HasPrefix(text, "/braid-agent rates") {
			return errors.New(text)
		}
	}
	return nil
}

// sysdump returns the files of an archive.
func sysdump(ctx context.Context, t *testing.T) map[string]string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "sysdump.tar.gz")
	if _, err := run(ctx, pluginBin, "sysdump", "--file", name); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	packed, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for reader := tar.NewReader(packed); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		_, inside, _ := strings.Cut(header.Name, "/")
		files[inside] = string(content)
	}
}
