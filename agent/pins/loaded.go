// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// ErrRefused is of programs that the verifier of this kernel does not take.
var ErrRefused = errors.New("this kernel's verifier refuses a program")

// Loaded is what a part of the agent has loaded, as a pointer: programs, and the maps
// and links that are pinned. It is not safe for concurrent use.
type Loaded[T interface {
	comparable
	io.Closer
}] struct {
	*Pins
	// Value is nil while nothing is loaded.
	Value T

	load func() (T, error)
	// removed says that nothing is pinned, by earlier agents either.
	removed bool
	// refused is what the verifier said of the programs.
	refused error
}

// NewLoaded loads nothing yet. load begins with Prepare, and closes what it has opened
// where it fails.
func NewLoaded[T interface {
	comparable
	io.Closer
}](pins *Pins, load func() (T, error)) *Loaded[T] {
	return &Loaded[T]{Pins: pins, load: load}
}

// Is says whether something is loaded.
func (l *Loaded[T]) Is() bool {
	var none T
	return l.Value != none
}

// Exists says whether this agent or an earlier one left something.
func (l *Loaded[T]) Exists() bool {
	if !l.Is() && !l.removed {
		_, err := os.Stat(l.root)
		l.removed = errors.Is(err, os.ErrNotExist)
	}
	return !l.removed
}

// Load loads once. What another version pinned is taken over. A verifier that refuses
// with ErrRefused is not asked again.
func (l *Loaded[T]) Load() (err error) {
	if l.Is() || l.refused != nil {
		return l.refused
	}
	l.removed = false
	l.Value, err = l.load()
	if isRefusal(err) {
		l.refused = fmt.Errorf("%w: %w", ErrRefused, err)
		return l.refused
	}
	return err
}

// Refused is why nothing can be loaded on this kernel; nil where it can, or nobody tried.
func (l *Loaded[T]) Refused() error { return l.refused }

// isRefusal tells a verdict of the verifier from what may pass, as too little memory.
func isRefusal(err error) bool {
	var verifier *ebpf.VerifierError
	if !errors.As(err, &verifier) || len(verifier.Log) == 0 {
		return false
	}
	return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.E2BIG)
}

// Close lets go of everything without changing it: what is pinned stays.
func (l *Loaded[T]) Close() error {
	if !l.Is() {
		return nil
	}
	err := errors.Join(l.Value.Close(), l.Pins.Close())
	var none T
	l.Value = none
	return err
}

// Remove detaches by these functions, and then removes everything pinned, also what
// another agent left.
func (l *Loaded[T]) Remove(detach ...func() error) error {
	var failed error
	for _, one := range detach {
		failed = errors.Join(failed, one())
	}
	failed = errors.Join(failed, l.Close())
	if err := os.RemoveAll(l.root); err != nil {
		failed = errors.Join(failed, fmt.Errorf("removing the pins in %s: %w", l.root, err))
	}
	l.removed = failed == nil
	return failed
}
