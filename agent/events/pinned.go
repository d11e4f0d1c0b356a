// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"
)

// lookAgain is how often it is looked whether the ring buffer came, went or was
// replaced: the agent makes it with the first chain and removes it with the last.
const lookAgain = time.Second

// Receiver receives from the ring buffer that is pinned in a directory, whenever
// there is one.
type Receiver struct {
	// Pins is the directory on a BPF file system.
	Pins  string
	Names Names
	Into  *Log
	Log   logr.Logger
}

// Start receives until the context ends.
func (r *Receiver) Start(ctx context.Context) error {
	reported := ""
	for ctx.Err() == nil {
		err := r.receive(ctx)
		if err != nil && err.Error() != reported {
			r.Log.Error(err, "receiving what rules report; trying again", "after", lookAgain.String())
		}
		reported = ""
		if err != nil {
			reported = err.Error()
		}
		pause(ctx)
	}
	return nil
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(lookAgain):
	}
}

// receive returns when the ring buffer is no longer the pinned one, or when there
// is none.
func (r *Receiver) receive(ctx context.Context) error {
	buffer, err := r.open()
	if err != nil || buffer == nil {
		return err
	}
	defer buffer.Close()
	id, err := idOf(buffer)
	if err != nil {
		return err
	}
	while, stop := context.WithCancel(ctx)
	defer stop()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		r.watch(while, id)
		stop()
	}()
	err = Receive(while, buffer, r.Names, r.Into, r.Log)
	stop()
	<-watched
	return err
}

// watch returns when another ring buffer is pinned, or none.
func (r *Receiver) watch(ctx context.Context, id ebpf.MapID) {
	for pause(ctx); ctx.Err() == nil; pause(ctx) {
		now, err := r.open()
		if err != nil || now == nil {
			return
		}
		same, err := idOf(now)
		now.Close()
		if err != nil || same != id {
			return
		}
	}
}

// open returns nil where nothing is pinned.
func (r *Receiver) open() (*ebpf.Map, error) {
	buffer, err := ebpf.LoadPinnedMap(filepath.Join(r.Pins, "events"), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening the ring buffer of events: %w", err)
	}
	return buffer, nil
}

func idOf(buffer *ebpf.Map) (ebpf.MapID, error) {
	info, err := buffer.Info()
	if err != nil {
		return 0, fmt.Errorf("identifying the ring buffer of events: %w", err)
	}
	id, known := info.ID()
	if !known {
		return 0, errors.New("the kernel does not number its maps")
	}
	return id, nil
}
