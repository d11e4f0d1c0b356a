// SPDX-License-Identifier: Apache-2.0

package testutil_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/testutil"
)

// recorder is a test whose failure is no failure of this one.
type recorder struct {
	testing.TB
	failure string
}

func (*recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) { r.failure = fmt.Sprintf(format, args...) }

func TestWaitingEndsWithTheFirstSuccess(t *testing.T) {
	calls := 0
	took := testutil.Retry(t, time.Minute, func() error {
		if calls++; calls < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	require.Equal(t, 3, calls)
	require.Less(t, took, time.Minute)
	testutil.Eventually(t, time.Minute, "it is so at once", func() bool { calls++; return true })
	require.Equal(t, 4, calls)
}

func TestWhatNeverSucceedsFailsTheTestAndSaysWhy(t *testing.T) {
	r, begin := &recorder{TB: t}, time.Now()
	testutil.Eventually(r, 20*time.Millisecond, "the sun is up", func() bool { return false })
	require.Equal(t, "not within 20ms: the sun is up", r.failure)
	require.Greater(t, time.Since(begin), 20*time.Millisecond)
	cause := errors.New("the cause")
	_, err := testutil.Until(0, func() error { return cause })
	require.ErrorIs(t, err, cause)
}
