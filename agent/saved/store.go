// SPDX-License-Identifier: Apache-2.0

package saved

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"braid.dev/braid/api/v1alpha1"
)

// Store writes what an agent read, now and then. Keep may be called while Run runs, by
// one goroutine.
type Store struct {
	directory, nodeName string
	log                 logr.Logger
	latest              chan State
	sum                 [sha256.Size]byte // of what was written last
	size                int
	failure             atomic.Pointer[string]
	notify              func()
}

// NewStore writes into a directory, which it makes; without one it writes nothing. It calls
// notify when Failure becomes another.
func NewStore(directory, nodeName string, log logr.Logger, notify func()) *Store {
	s := &Store{directory: directory, nodeName: nodeName, log: log, latest: make(chan State, 1), notify: notify}
	s.failure.Store(new(string))
	return s
}

// Failure is why the latest state is not saved; empty where it is. It may be called at any
// time.
func (s *Store) Failure() string { return *s.failure.Load() }

// Keep has a state written soon; it never waits. Nobody may change the state any more.
func (s *Store) Keep(state State) {
	if s.directory == "" {
		return
	}
	select {
	case <-s.latest:
	default:
	}
	s.latest <- state
}

// Run writes what is kept until the context ends, and then the last of it.
func (s *Store) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			s.writeLatest()
			return nil
		case state := <-s.latest:
			s.write(state)
		}
		select { // what changes soon again is written once
		case <-ctx.Done():
		case <-time.After(s.pause()):
		}
	}
}

// pause is how long nothing is written after a state was: the longer the more there
// is to write, so that nodes that come and go in a large cluster cost little.
func (s *Store) pause() time.Duration {
	return time.Second + time.Duration(s.size>>20)*time.Second
}

func (s *Store) writeLatest() {
	select {
	case state := <-s.latest:
		s.write(state)
	default:
	}
}

func (s *Store) write(state State) {
	err := s.save(trim(state))
	failure := ""
	if err != nil {
		failure = err.Error()
	}
	if *s.failure.Swap(&failure) != failure {
		s.notify()
	}
	if err != nil {
		s.log.Error(err, "failed to save what the API server says; an agent that starts while it cannot be reached would know nothing, or what was saved before")
	}
}

// save writes a state, unless it is the one that was written last.
func (s *Store) save(state State) error {
	content, err := json.Marshal(state)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	if sum == s.sum {
		return nil
	}
	if isEmpty(state.Plan) {
		s.sum, s.size = sum, 0
		return Remove(s.directory)
	}
	data, err := encode(&File{NodeName: s.nodeName, Time: time.Now().UTC().Truncate(time.Second), State: state})
	if err != nil {
		return err
	}
	if len(data) > mostBytes {
		return errors.Join(fmt.Errorf("it has %d bytes; %d are saved at most", len(data), mostBytes), Remove(s.directory))
	}
	if err := replace(s.directory, data); err != nil {
		return err
	}
	s.sum, s.size = sum, len(data)
	return nil
}

// isEmpty: without what was read, an agent would do the same.
func isEmpty(plan *v1alpha1.MPTCPNodePlan) bool {
	return plan == nil || apiequality.Semantic.DeepEqual(plan.Spec, v1alpha1.MPTCPNodePlanSpec{})
}

// replace puts a new file into the place of the old one: a node that loses its power
// meanwhile has the one or the other.
func replace(directory string, data []byte) (err error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return err
	}
	if err := os.Chmod(directory, 0o700); err != nil { // kubelet makes it for everybody to read
		return err
	}
	path := filepath.Join(directory, FileName)
	if err := writeSynced(path+".new", data); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDirectory(directory)
}

func writeSynced(path string, data []byte) (err error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Sync(), file.Close())
}

func syncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}

// Remove removes what agents saved in a directory, and the directory when it is empty.
func Remove(directory string) error {
	if directory == "" {
		return nil
	}
	var failed error
	for _, name := range []string{FileName + ".new", FileName} {
		if err := os.Remove(filepath.Join(directory, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			failed = errors.Join(failed, fmt.Errorf("failed to remove what an agent saved: %w", err))
		}
	}
	_ = os.Remove(directory) // it is mounted, or others' files are in it
	return failed
}
