// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// programs stand for what a part loads.
type programs struct{ closed bool }

func (p *programs) Close() error {
	p.closed = true
	return nil
}

func newLoaded(t *testing.T) (loaded *Loaded[*programs], failure *error) {
	t.Helper()
	pinned, failure := New(t.TempDir()+"/part", "v1", logr.Discard()), new(error)
	return NewLoaded(pinned, func() (*programs, error) {
		if *failure != nil {
			return nil, *failure
		}
		return &programs{}, os.MkdirAll(pinned.Directory(), 0o700)
	}), failure
}

func TestWhatIsLoadedIsLoadedOnceAndOutlivesItsPart(t *testing.T) {
	l, _ := newLoaded(t)
	require.False(t, l.Exists())
	require.NoError(t, l.Load())
	first := l.Value
	require.NoError(t, l.Load())
	require.Same(t, first, l.Value)
	require.NoError(t, l.Close())
	require.True(t, first.closed)
	require.False(t, l.Is())
	require.True(t, l.Exists(), "what is pinned stays")
	require.NoError(t, l.Close(), "it may be repeated")
}

func TestARemovalDetachesFirstAndNeedsNothingLoaded(t *testing.T) {
	l, _ := newLoaded(t)
	require.NoError(t, l.Load())
	require.NoError(t, l.Close())
	pinned := false
	require.NoError(t, l.Remove(func() error {
		_, err := os.Stat(l.Directory())
		pinned = err == nil
		return nil
	}))
	require.True(t, pinned, "links are detached while they are pinned")
	require.False(t, l.Exists())
	_, err := os.Stat(l.Directory())
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestAFailureIsTriedAgain(t *testing.T) {
	l, failure := newLoaded(t)
	*failure = errors.New("the verifier refused it")
	require.ErrorIs(t, l.Load(), *failure)
	require.False(t, l.Is())
	*failure = nil
	require.NoError(t, l.Load())
	*failure = errors.New("a link is busy")
	require.ErrorIs(t, l.Remove(func() error { return *failure }), *failure)
	require.NoError(t, l.Remove())
}

func TestAVerifierThatRefusesIsNotAskedAgain(t *testing.T) {
	l, failure := newLoaded(t)
	*failure = fmt.Errorf("loading: %w", &ebpf.VerifierError{Cause: unix.EACCES, Log: []string{"invalid zero-sized read"}})
	require.ErrorIs(t, l.Load(), ErrRefused)
	*failure = nil
	require.ErrorIs(t, l.Load(), ErrRefused)
	require.ErrorContains(t, l.Refused(), "invalid zero-sized read")
	require.False(t, l.Is())
}

func TestWhatMayPassIsTriedAgain(t *testing.T) {
	for name, cause := range map[string]error{
		"no memory": &ebpf.VerifierError{Cause: unix.ENOMEM, Log: []string{"func#0 @0"}}, "no rights": unix.EPERM,
		"no log": &ebpf.VerifierError{Cause: unix.EACCES},
	} {
		t.Run(name, func(t *testing.T) {
			l, failure := newLoaded(t)
			*failure = cause
			require.ErrorIs(t, l.Load(), cause)
			require.NoError(t, l.Refused())
			*failure = nil
			require.NoError(t, l.Load())
		})
	}
}
