// SPDX-License-Identifier: Apache-2.0

package pressure_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/pressure"
)

const (
	cpu  = "some avg10=0.00 avg60=3.00 avg300=15.11 total=1500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
	stat = "cpu  847373 91136 427256 1252389 3676 0 95646 781 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n"
)

func TestTheKernelsAccountsAreRead(t *testing.T) {
	is, err := pressure.Parse(cpu, stat)
	require.NoError(t, err)
	want := pressure.Counters{Waited: 1500 * time.Millisecond, Stolen: 7810 * time.Millisecond}
	require.Equal(t, want, is)
	require.Equal(t, pressure.Counters{Waited: time.Second, Stolen: 7 * time.Second},
		is.Since(pressure.Counters{Waited: 500 * time.Millisecond, Stolen: 810 * time.Millisecond}))
	_, err = pressure.Now()
	require.NoError(t, err)
}

func TestOtherAccountsAreNotTakenForNone(t *testing.T) {
	for _, test := range [][2]string{
		{"", stat}, {cpu, ""}, {cpu, "intr 1 2 3 4 5 6 7 8 9"}, {cpu, "cpu 1 2 3"}, {cpu, "cpu 1 2 3 4 5 6 7 x 9"},
		{"full avg10=0.00 total=7", stat}, {"some avg10=0.00 total=99999999999999999999", stat},
	} {
		_, err := pressure.Parse(test[0], test[1])
		require.ErrorContains(t, err, "not understood", test)
	}
}
