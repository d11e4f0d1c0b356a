// SPDX-License-Identifier: Apache-2.0

package health

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"braid.dev/braid/api/v1alpha1"
)

var defaults = v1alpha1.PlanPreference{
	Weight:                 v1alpha1.DefaultPreferenceWeight,
	MaxRTTPercent:          v1alpha1.DefaultMaxRTTPercent,
	MinRTTDifferenceMicros: v1alpha1.DefaultMinRTTDifferenceMicros,
	MaxLossPercent:         v1alpha1.DefaultMaxLossPercent,
	LeaveAfterMillis:       v1alpha1.DefaultLeaveAfterMillis,
	ReturnAfterMillis:      v1alpha1.DefaultReturnAfterMillis,
}

// trial is a judge in whose time green is alive with a round trip of 40 ms, and blue
// is as the test says.
type trial struct {
	judge   Judge
	now     time.Time
	changes []time.Time
	good    bool
}

func newTrial() *trial { return &trial{now: time.Unix(1000, 0), good: true} }

var bothPaths = []string{"blue", "green"}

// at judges as often as a prober tells, and when the judge wants, for some time.
func (tr *trial) at(d time.Duration, blue Sample) {
	var view View
	view.Set("peer1", "blue", blue)
	view.Set("peer1", "green", Sample{State: Alive, RTT: 40 * ms})
	for end := tr.now.Add(d); ; {
		good, next := tr.judge.Update(tr.now, view, []string{"peer1"}, bothPaths, []v1alpha1.PlanPreference{defaults})
		if is := good["peer1"][0]["blue"]; is != tr.good {
			tr.good = is
			tr.changes = append(tr.changes, tr.now)
		}
		tick := tr.now.Add(25 * ms)
		if !next.IsZero() && next.Before(tick) {
			tick = next
		}
		if tick.After(end) {
			tr.now = end
			return
		}
		tr.now = tick
	}
}

func alive(rtt time.Duration) Sample { return Sample{State: Alive, RTT: rtt} }

func losing(loss float64) Sample { return Sample{State: Alive, RTT: 40 * ms, Loss: loss} }

func TestAPreferredPathIs(t *testing.T) {
	step := func(d time.Duration, s Sample) func(*trial) { return func(tr *trial) { tr.at(d, s) } }
	for name, c := range map[string]struct {
		steps []func(*trial)
		good  bool
	}{
		"good from the beginning, though nothing is known": {[]func(*trial){step(0, Sample{})}, true},
		"kept at 60 ms beside 40 ms":                       {[]func(*trial){step(time.Minute, alive(60*ms))}, true},
		"given up at 200 ms beside 40 ms":                  {[]func(*trial){step(110*ms, alive(200*ms))}, false},
		"kept until leaveAfter has passed":                 {[]func(*trial){step(90*ms, alive(200*ms))}, true},
		"kept where the bad times are too short":           {[]func(*trial){step(80*ms, alive(200*ms)), step(30*ms, alive(40*ms)), step(80*ms, alive(200*ms))}, true},
		"left at once when dead":                           {[]func(*trial){step(0, Sample{State: Dead})}, false},
		"given up when it loses more than a tenth":         {[]func(*trial){step(110*ms, losing(0.11))}, false},
		"kept when it loses a tenth":                       {[]func(*trial){step(time.Minute, losing(0.10))}, true},
		"not returned to before returnAfter":               {[]func(*trial){step(110*ms, alive(200*ms)), step(490*ms, alive(40*ms))}, false},
		"returned to after it":                             {[]func(*trial){step(110*ms, alive(200*ms)), step(510*ms, alive(40*ms))}, true},
		"not returned to just within the limit":            {[]func(*trial){step(110*ms, alive(200*ms)), step(time.Minute, alive(79*ms))}, false},
		"not returned to while it still loses":             {[]func(*trial){step(110*ms, losing(0.3)), step(time.Minute, losing(0.06))}, false},
		"returned to after it was dead":                    {[]func(*trial){step(5*time.Second, Sample{State: Dead}), step(510*ms, alive(40*ms))}, true},
		"returned to when its peer falls silent":           {[]func(*trial){step(time.Second, Sample{State: Dead}), step(510*ms, Sample{})}, true},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTrial()
			for _, step := range c.steps {
				step(tr)
			}
			if tr.good != c.good {
				t.Errorf("good is %v, want %v", tr.good, c.good)
			}
		})
	}
}

func TestAFactorMeansNothingBetweenMicroseconds(t *testing.T) {
	var judge Judge
	var view View
	view.Set("peer1", "green", alive(50*time.Microsecond))
	view.Set("peer1", "blue", alive(4*ms))
	now := time.Unix(1000, 0)
	for range 100 {
		good, _ := judge.Update(now, view, []string{"peer1"}, bothPaths, []v1alpha1.PlanPreference{defaults})
		if !good["peer1"][0]["blue"] {
			t.Fatal("4 ms beside 50 µs is not good enough, with a difference of 5 ms allowed")
		}
		now = now.Add(10 * ms)
	}
}

func TestEachPreferenceAndPeerIsJudgedByItself(t *testing.T) {
	var judge Judge
	var view View
	view.Set("peer1", "green", alive(40*ms))
	view.Set("peer1", "blue", alive(200*ms))
	view.Set("peer2", "green", alive(40*ms))
	view.Set("peer2", "blue", alive(41*ms))
	patient := defaults
	patient.MaxRTTPercent = 1000
	now := time.Unix(1000, 0)
	update := func(preferences ...v1alpha1.PlanPreference) map[string][]map[string]bool {
		good, _ := judge.Update(now, view, []string{"peer1", "peer2", "stranger"}, bothPaths, preferences)
		return good
	}
	update(defaults, patient)
	now = now.Add(time.Second)
	good := update(patient, defaults) // the order is not what a preference is known by
	for name, c := range map[string]struct{ got, want bool }{
		"patient, peer1":  {good["peer1"][0]["blue"], true},
		"defaults, peer1": {good["peer1"][1]["blue"], false},
		"defaults, peer2": {good["peer2"][1]["blue"], true},
		"the best path":   {good["peer1"][1]["green"], true},
		"an unknown peer": {good["stranger"][1]["blue"], true},
	} {
		if c.got != c.want {
			t.Errorf("%s: good is %v", name, c.got)
		}
	}
}

func TestTheJudgeSaysWhenToAskAgain(t *testing.T) {
	var judge Judge
	var view View
	view.Set("peer1", "green", alive(40*ms))
	view.Set("peer1", "blue", alive(200*ms))
	now := time.Unix(1000, 0)
	update := func() (bool, time.Time) {
		good, next := judge.Update(now, view, []string{"peer1"}, bothPaths, []v1alpha1.PlanPreference{defaults})
		return good["peer1"][0]["blue"], next
	}
	good, next := update()
	if !good || !next.Equal(now.Add(100*ms)) {
		t.Errorf("good %v, ask again at %s", good, next)
	}
	now = next
	if good, next = update(); good || !next.IsZero() {
		t.Errorf("good %v, ask again at %s after it was left", good, next)
	}
	view.Set("peer1", "blue", alive(40*ms))
	if _, next = update(); !next.Equal(now.Add(500 * ms)) {
		t.Errorf("ask again at %s while it is to be returned to", next)
	}
}

func TestOneThatIsOftenLeftWaitsLonger(t *testing.T) {
	tr := newTrial()
	for range 120 { // bad for half of each second
		tr.at(500*ms, alive(200*ms))
		tr.at(500*ms+time.Millisecond, alive(40*ms))
	}
	if len(tr.changes) > 6 {
		t.Errorf("%d changes in two minutes", len(tr.changes))
	}
	tr.at(time.Minute, alive(40*ms))
	if !tr.good {
		t.Error("after a good minute it is not returned to")
	}
	begun := tr.now
	tr.at(time.Hour, alive(40*ms))
	tr.at(200*ms, alive(200*ms))
	tr.at(600*ms, alive(40*ms))
	if !tr.good {
		t.Errorf("an hour after %s it is still held against it", begun)
	}
}

func TestABlockedPathReturnsEachTimeWithinASecond(t *testing.T) {
	tr := newTrial()
	for range 4 {
		tr.at(10*time.Second, alive(40*ms))
		tr.at(5*time.Second, Sample{State: Dead})
		tr.at(550*ms, alive(40*ms))
		if !tr.good {
			t.Fatalf("not returned to 550 ms after it was alive: %v", tr.changes)
		}
	}
}

// Whatever a path does, decisions keep their dwells; and where its round trip stays
// between the limits of leaving and returning, at most one is made.
func TestDecisionsDoNotFlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := newTrial()
		durations := rapid.SliceOfN(rapid.IntRange(1, 3000), 1, 100).Draw(t, "durations")
		for _, d := range durations {
			sample := Sample{
				State: rapid.SampledFrom([]State{Unknown, Alive, Alive, Alive, Dead}).Draw(t, "state"),
				RTT:   time.Duration(rapid.IntRange(0, 300).Draw(t, "rtt")) * ms,
				Loss:  rapid.Float64Range(0, 0.5).Draw(t, "loss"),
			}
			tr.at(time.Duration(d)*ms, sample)
		}
		for i, at := range tr.changes {
			if back := i%2 == 1; back && at.Sub(tr.changes[i-1]) < 500*ms {
				t.Fatalf("returned to after %s", at.Sub(tr.changes[i-1]))
			}
		}
		before := len(tr.changes)
		for range 200 { // from 73 to 79 ms lies between the limits, 72 and 80
			tr.at(time.Duration(rapid.IntRange(1, 1000).Draw(t, "wobble"))*ms, alive(time.Duration(rapid.IntRange(73, 79).Draw(t, "rtt"))*ms))
		}
		if len(tr.changes) > before {
			t.Fatalf("%d changes between the limits", len(tr.changes)-before)
		}
	})
}

// A path near its limit is given up ever more rarely, not at an even pace.
func TestRelapsesBecomeRarer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := newTrial()
		periods := rapid.SliceOfN(rapid.IntRange(50, 700), 100, 100).Draw(t, "periods")
		for i, period := range periods {
			tr.at(time.Duration(period)*ms, alive([]time.Duration{40 * ms, 200 * ms}[i%2]))
		}
		var gaps []time.Duration
		for i := 1; i < len(tr.changes); i++ {
			gaps = append(gaps, tr.changes[i].Sub(tr.changes[i-1]))
		}
		if len(tr.changes) > 14 {
			t.Fatalf("%d changes with %v between them", len(tr.changes), slices.Clone(gaps))
		}
	})
}
