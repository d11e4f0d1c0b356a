// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"braid.dev/braid/internal/testutil"
)

// Tags of images beside those of this checkout.
const (
	// previous is what came before the last change of what the images hold.
	previous = "previous"
	// otherPins are of this checkout, but call their pins by another version, and
	// copy maps rather than share them.
	otherPins = "other"
)

// previousSource is the checkout of the previous images; empty where the checkout has
// no history.
var previousSource string

// otherImages are made while other tests run, since the upgrade is the last one.
var otherImages building

// building is what makes archives of images in the background.
type building struct {
	stop     context.CancelFunc
	done     chan struct{}
	archives []string
	err      error
}

func (b *building) begin(ctx context.Context) {
	ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	b.done = make(chan struct{})
	go func() {
		defer close(b.done)
		b.archives, b.err = makeOtherImages(ctx)
	}()
}

func (b *building) wait(t *testing.T) []string {
	t.Helper()
	<-b.done
	if b.err != nil {
		t.Fatalf("making the images to upgrade from and to: %v", b.err)
	}
	return b.archives
}

// end stops what goes on, where no test waited for it.
func (b *building) end() {
	if b.done != nil {
		b.stop()
		<-b.done
	}
}

// makeOtherImages builds the images to upgrade from and to, and returns the archives.
func makeOtherImages(ctx context.Context) (archives []string, err error) {
	builds := [][]string{{"OUT=" + out(otherPins), "LDFLAGS=-X braid.dev/braid/agent/pins.variant=other", "hack/image/build.sh", otherPins}}
	switch previousSource, err = checkOutPrevious(ctx); {
	case errors.Is(err, errNoHistory):
		fmt.Fprintln(os.Stderr, "ERROR:", err)
	case err != nil:
		return nil, err
	default:
		builds = append(builds, []string{"OUT=" + out(previous), "SOURCE=" + previousSource, "hack/image/build.sh", previous})
	}
	for _, build := range builds {
		if _, err := run(ctx, "nice", append([]string{"-n", "5", "env"}, build...)...); err != nil {
			return nil, err
		}
	}
	return filepath.Glob(filepath.Join(repository, "_out/images/*/braid-*-amd64.tar"))
}

func out(tag string) string { return filepath.Join(repository, "_out/images", tag) }

var errNoHistory = errors.New("this checkout has no history, so that an upgrade from what came before is not tried, " +
	"only one from another version of what is pinned: git fetch --unshallow")

// checkOutPrevious writes to a directory what came before the last change
// of agent, controllers or packet programs, or the commit that PREVIOUS names.
func checkOutPrevious(ctx context.Context) (string, error) {
	if err := os.RemoveAll(out(previous)); err != nil {
		return "", err
	}
	git := func(arguments ...string) (string, error) {
		out, err := run(ctx, "git", append([]string{"-c", "safe.directory=*"}, arguments...)...)
		return strings.TrimSpace(out), err
	}
	last, err := git("rev-list", "--max-count=1", "HEAD", "--", "agent", "bpf", "controllers")
	if err != nil || last == "" {
		return "", fmt.Errorf("%w (%w)", errNoHistory, err)
	}
	commit, err := git("rev-parse", "--verify", cmp.Or(os.Getenv("PREVIOUS"), last+"^"))
	if err != nil {
		return "", fmt.Errorf("%w (%w)", errNoHistory, err)
	}
	// Below _out, where the next run finds what a killed one left.
	directory := filepath.Join(out(previous), "source")
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return "", err
	}
	archive := filepath.Join(directory, "archive.tar")
	_, err = git("archive", "--output", archive, commit)
	if err == nil {
		_, err = run(ctx, "tar", "--extract", "--file", archive, "--directory", directory)
	}
	return directory, err
}

// installVersion begins to install this version, or another one by its own chart.
func installVersion(ctx context.Context, t *testing.T, tag string) {
	t.Helper()
	chart, arguments := "charts/braid", []string{}
	if tag != "" {
		arguments = append(arguments, "--set", "image.tag="+tag)
	}
	if tag == previous {
		chart = filepath.Join(previousSource, chart)
	}
	arguments = append([]string{"upgrade", release, chart, "--set", "image.pullPolicy=Never", "--reset-values",
		"--force-conflicts"}, arguments...)
	if err := helm(ctx, arguments...); err != nil {
		t.Fatal(err)
	}
}

func rollBack(ctx context.Context, t *testing.T, revision int) {
	t.Helper()
	if err := helm(ctx, "rollback", release, fmt.Sprint(revision), "--force-conflicts"); err != nil {
		t.Fatal(err)
	}
}

func revision(ctx context.Context, t *testing.T) int {
	t.Helper()
	out, err := run(ctx, helmBin, "status", release, "--namespace", systemNamespace, "--output", "json")
	var status struct{ Version int }
	if err == nil {
		err = json.Unmarshal([]byte(out), &status)
	}
	if err != nil || status.Version == 0 {
		t.Fatalf("asking Helm for the revision: %v: %.300s", err, out)
	}
	return status.Version
}

func TestUpgradeAndRollbackLoseNoConnectionAndNoRequest(t *testing.T) {
	images := otherImages.wait(t)
	from := previous
	if previousSource == "" {
		from = otherPins
	}
	feature := features.New("upgrade and rollback").
		Setup(func(ctx context.Context, t *testing.T, c *envconf.Config) context.Context {
			if err := cluster.load(ctx, images); err != nil {
				t.Fatal(err)
			}
			installVersion(ctx, t, from)
			awaitConvergence(ctx, t)
			return startHolding(ctx, t, c)
		}).
		Assess("200 connections and a loop of requests go on", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			before := revision(ctx, t)
			for _, step := range []struct {
				what string
				do   func()
				tag  string
			}{
				{"upgrade from " + from, func() { installVersion(ctx, t, "") }, ""},
				{"upgrade to other pins", func() { installVersion(ctx, t, otherPins) }, otherPins},
				{"rollback from other pins", func() { rollBack(ctx, t, before+1) }, ""},
				{"rollback to " + from, func() { rollBack(ctx, t, before) }, from},
			} {
				began := time.Now()
				step.do()
				took := awaitConvergence(ctx, t)
				expectVersion(ctx, t, step.tag)
				now := stillHolds(ctx, t, step.what)
				t.Logf("%s: %.0f s, everything is fine %.1f s later; %d exchanges, the longest of %.0f ms, %d requests",
					step.what, time.Since(began).Seconds(), took.Seconds(), now.Exchanges, now.LongestMs, now.Requests)
			}
			return ctx
		}).
		Assess("nothing was lost, and subflows are still spread", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			now := stillHolds(ctx, t, "at the end")
			testutil.Figure(t, "upgrade.lost", "", float64(now.lost()))
			return expectSpread(ctx, t)
		}).
		Teardown(func(ctx context.Context, t *testing.T, c *envconf.Config) context.Context {
			installVersion(ctx, t, "")
			awaitConvergence(ctx, t)
			return stopHolding(ctx, t, c)
		}).Feature()
	testenv.Test(t, feature)
}
