// SPDX-License-Identifier: Apache-2.0

package health

import (
	"testing"
	"time"
)

func TestTimeInWhichNobodyAttendedDoesNotCount(t *testing.T) {
	var c clock
	begun := c.now()
	time.Sleep(200 * time.Millisecond) // planned
	if now := c.resume(begun + 200*time.Millisecond); now < begun+200*time.Millisecond {
		t.Errorf("%s passed of 200 ms that were planned", now-begun)
	}
	planned := c.last + 5*time.Millisecond
	time.Sleep(300 * time.Millisecond)
	if now := c.resume(planned); now > planned+stall {
		t.Errorf("%s passed where 5 ms were planned", now-planned+5*time.Millisecond)
	}
	if c.missed < 280*time.Millisecond {
		t.Errorf("%s were missed of 295 ms", c.missed)
	}
	if passed := monotonic() - begun; passed-c.missed > c.now()-begun+stall {
		t.Errorf("the clock lost time")
	}
}
