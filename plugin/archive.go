// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"braid.dev/braid/internal/output"
)

// archive is a .tar.gz that several parts are written to at the same time. What goes
// wrong is kept, and told in the archive itself.
type archive struct {
	directory string // in the archive
	made      time.Time
	progress  *progress

	mutex    sync.Mutex
	packed   *gzip.Writer
	files    *tar.Writer
	count    int
	failures []string
	broken   error // of the archive itself
}

func newArchive(out io.Writer, directory string, made time.Time, progress *progress) *archive {
	packed := gzip.NewWriter(out)
	return &archive{directory: directory, made: made, progress: progress, packed: packed, files: tar.NewWriter(packed)}
}

// add writes a file.
func (a *archive) add(name string, content []byte) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	header := &tar.Header{Name: path.Join(a.directory, name), Mode: 0o600, Size: int64(len(content)), ModTime: a.made}
	if err := a.files.WriteHeader(header); err != nil {
		a.broken = errors.Join(a.broken, err)
		return
	}
	_, err := a.files.Write(content)
	a.broken = errors.Join(a.broken, err)
	a.count++
}

// addYAML writes a value as a file.
func (a *archive) addYAML(name string, value any) error {
	var text strings.Builder
	if err := output.YAML.Write(&text, value); err != nil {
		return err
	}
	a.add(name, []byte(text.String()))
	return nil
}

// fail notes what could not be read.
func (a *archive) fail(what string, err error) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	text := strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
	a.failures = append(a.failures, what+": "+text)
}

// part is something that is read by itself.
type part struct {
	what string
	read func(context.Context, *archive) error
}

const (
	partsAtOnce = 8
	partTimeout = time.Minute
)

// addAll reads all parts, some at the same time, whatever becomes of the others.
func (a *archive) addAll(ctx context.Context, parts []part) {
	var group errgroup.Group
	group.SetLimit(partsAtOnce)
	for _, p := range parts {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, partTimeout)
			defer cancel()
			if err := a.progress.during(p.what, func() error { return p.read(ctx, a) }); err != nil {
				a.fail(p.what, err)
			}
			return nil
		})
	}
	_ = group.Wait() // what failed is in the archive
}

// close adds what failed, and ends the archive.
func (a *archive) close() error {
	slices.Sort(a.failures)
	text := "Everything was read.\n"
	if len(a.failures) > 0 {
		text = strings.Join(a.failures, "\n") + "\n"
	}
	a.add("errors.txt", []byte(text))
	if err := errors.Join(a.broken, a.files.Close(), a.packed.Close()); err != nil {
		return fmt.Errorf("writing the archive: %w", err)
	}
	return nil
}

// progress tells of what takes its time.
type progress struct {
	mutex sync.Mutex
	out   io.Writer
}

// progressAfter is when a user begins to wonder.
const progressAfter = 2 * time.Second

// during does something, and says so when that takes longer.
func (g *progress) during(what string, do func() error) error {
	timer := time.AfterFunc(progressAfter, func() {
		g.mutex.Lock()
		defer g.mutex.Unlock()
		fmt.Fprintf(g.out, "kubectl braid: still reading %s\n", what)
	})
	defer timer.Stop()
	return do()
}
