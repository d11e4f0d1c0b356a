// SPDX-License-Identifier: Apache-2.0

package health

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var usual = pacing{active: 50 * time.Millisecond, idle: time.Second, heard: heardInterval, mostIdle: 100, rate: 2000, burst: 200, lostToDie: lostToDie, hurries: hurries}

const ms = time.Millisecond

// simulation is a tracker, and a network in which time passes as the test wants.
type simulation struct {
	*tracker
	now    time.Duration
	random *rand.Rand
	wires  map[pair]*wire
	away   map[string]bool // peers whose agents do not answer
	flying deliveries
	sent   []sentProbe
	// history is each change of a state.
	history []change
	states  map[pair]State
}

type wire struct {
	rtt     time.Duration
	blocked bool
	loss    float64
}

type sentProbe struct {
	of pair
	at time.Duration
}

type change struct {
	of pair
	to State
	at time.Duration
}

type delivery struct {
	at    time.Duration
	reply received
	nic   int
	from  pair
}

type deliveries []delivery

func (d deliveries) Len() int           { return len(d) }
func (d deliveries) Less(i, j int) bool { return d[i].at < d[j].at }
func (d deliveries) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *deliveries) Push(x any)        { *d = append(*d, x.(delivery)) }
func (d *deliveries) Pop() any {
	last := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return last
}

// simulate begins with so many peers on these paths, each with a round trip of 1 ms.
func simulate(pacing pacing, peers int, active bool, paths ...string) *simulation {
	random := rand.New(rand.NewPCG(1, 2))
	s := &simulation{
		tracker: newTracker(pacing, random.Uint64), now: time.Second, random: random,
		wires: map[pair]*wire{}, away: map[string]bool{}, states: map[pair]State{},
	}
	s.setTargets(s.now, pathsTo(peers, active, paths...))
	for _, target := range pathsTo(peers, active, paths...) {
		s.wires[pair{target.Peer, target.Path}] = &wire{rtt: ms}
	}
	return s
}

func pathsTo(peers int, active bool, paths ...string) (targets []Target) {
	for i := range peers {
		for j, path := range paths {
			targets = append(targets, Target{
				Peer: fmt.Sprintf("peer%d", i+1), Path: path, Interface: j + 1, Active: active,
				Local:  netip.AddrFrom4([4]byte{10, byte(j), 255, 1}),
				Remote: netip.AddrFrom4([4]byte{10, byte(j), byte(i >> 8), byte(i)}),
			})
		}
	}
	return targets
}

func (s *simulation) wire(path string) *wire { return s.wires[pair{"peer1", path}] }

// run lets time pass.
func (s *simulation) run(d time.Duration) {
	end := s.now + d
	for {
		next := s.next()
		if len(s.flying) > 0 {
			next = min(next, s.flying[0].at)
		}
		if next > end {
			break
		}
		s.now = max(s.now, next)
		s.step()
	}
	s.now = end
	s.note()
}

func (s *simulation) step() {
	for len(s.flying) > 0 && s.flying[0].at <= s.now {
		d := heap.Pop(&s.flying).(delivery)
		if !s.wires[d.from].blocked {
			s.answered(s.now, d.reply, d.nic)
		}
	}
	for _, p := range s.advance(s.now) {
		of := pair{p.target.Peer, p.target.Path}
		s.now += 20 * time.Microsecond // one after the other
		s.sentAt(p, s.now, false)
		s.sent = append(s.sent, sentProbe{of, s.now})
		w := s.wires[of]
		if w.blocked || s.away[of.peer] || s.random.Float64() < w.loss {
			continue
		}
		reply := received{packet: packet{kind: kindReply, nonce: p.nonce}, from: netip.AddrPortFrom(p.target.Remote, DefaultPort)}
		heap.Push(&s.flying, delivery{s.now + w.rtt, reply, p.target.Interface, of})
	}
	s.note()
}

func (s *simulation) note() {
	for of, target := range s.targets {
		if s.states[of] != target.state {
			s.states[of] = target.state
			s.history = append(s.history, change{of, target.state, s.now})
		}
	}
}

func (s *simulation) state(path string) State { return s.targets[pair{"peer1", path}].state }

// changeOf is when a path came into a state after some time; 0 if it did not.
func (s *simulation) changeOf(path string, to State, after time.Duration) time.Duration {
	for _, c := range s.history {
		if c.of == (pair{"peer1", path}) && c.to == to && c.at >= after {
			return c.at
		}
	}
	return 0
}

func (s *simulation) expect(t *testing.T, path string, want State) {
	t.Helper()
	if got := s.state(path); got != want {
		t.Fatalf("%s is %s, want %s; history %v", path, got, want, s.history)
	}
}

func (s *simulation) count(state State) (count int) {
	for _, c := range s.history {
		if c.to == state {
			count++
		}
	}
	return count
}

func TestABlockedPathDiesAndRevives(t *testing.T) {
	for name, c := range map[string]struct {
		active       bool
		rtt          time.Duration
		dies, revive time.Duration
	}{
		"active":               {true, ms, 130 * ms, 160 * ms},
		"active and far":       {true, 40 * ms, 200 * ms, 220 * ms},
		"active and very far":  {true, 200 * ms, 450 * ms, 400 * ms},
		"idle":                 {false, ms, 1100 * ms, 1150 * ms},
		"idle and a bit far":   {false, 20 * ms, 1200 * ms, 1200 * ms},
		"active and very near": {true, 30 * time.Microsecond, 130 * ms, 160 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			for phase := range 10 {
				s := simulate(usual, 1, c.active, "blue", "green")
				s.wire("blue").rtt, s.wire("green").rtt = c.rtt, c.rtt
				s.run(20*time.Second + time.Duration(phase)*7*ms)
				s.expect(t, "blue", Alive)
				s.wire("blue").blocked = true
				blocked := s.now
				s.run(10 * time.Second)
				s.expect(t, "blue", Dead)
				s.expect(t, "green", Alive)
				if took := s.changeOf("blue", Dead, blocked) - blocked; took > c.dies {
					t.Errorf("dead after %s, want %s at most", took, c.dies)
				}
				s.wire("blue").blocked = false
				opened := s.now
				s.run(10 * time.Second)
				s.expect(t, "blue", Alive)
				if took := s.changeOf("blue", Alive, opened) - opened; took > c.revive {
					t.Errorf("alive after %s, want %s at most", took, c.revive)
				}
			}
		})
	}
}

func TestPathsAreNotDeadWhen(t *testing.T) {
	for name, disturb := range map[string]func(*simulation){
		"the peer never answered":     func(s *simulation) { s.away["peer1"] = true; s.setTargets(s.now, nil); s.again() },
		"the peer's agent goes away":  func(s *simulation) { s.run(time.Second); s.away["peer1"] = true },
		"all paths are blocked":       func(s *simulation) { s.run(time.Second); s.wire("blue").blocked, s.wire("green").blocked = true, true },
		"a round trip becomes longer": func(s *simulation) { s.run(time.Second); s.wire("blue").rtt = 50 * ms },
		"answers come 500 ms later":   func(s *simulation) { s.run(time.Second); s.wire("blue").rtt, s.wire("green").rtt = 501*ms, 501*ms },
		"two probes in a row are lost": func(s *simulation) {
			s.run(time.Second + 49*ms)
			s.wire("blue").blocked = true
			s.run(40 * ms) // one regular probe and a quick one
			s.wire("blue").blocked = false
		},
		"the peer's agent pauses": func(s *simulation) {
			for range 20 {
				s.run(time.Second)
				s.away["peer1"] = true
				s.run(170 * ms)
				s.away["peer1"] = false
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := simulate(usual, 1, true, "blue", "green")
			disturb(s)
			s.run(10 * time.Second)
			if s.count(Dead) > 0 {
				t.Errorf("a path died: %v", s.history)
			}
		})
	}
}

// again sets the simulation's targets anew.
func (s *simulation) again() { s.setTargets(s.now, pathsTo(1, true, "blue", "green")) }

func TestASilentPeerIsUnknown(t *testing.T) {
	s := simulate(usual, 1, true, "blue", "green")
	s.run(time.Second)
	s.away["peer1"] = true
	s.run(3 * time.Second)
	s.expect(t, "blue", Unknown)
	if sample := s.view().Sample("peer1", "blue"); sample.Answers || !sample.Probed {
		t.Errorf("a silent peer shows as %+v", sample)
	}
	s.away["peer1"] = false
	s.run(time.Second)
	s.expect(t, "blue", Alive)
}

// What a peer answered on no path says nothing of one that it just did not answer on yet.
func TestAPeerThatComesBackIsNotUnreachableWhereItWasNotAskedSince(t *testing.T) {
	for name, begin := range map[string]time.Duration{"and was known": time.Second, "and was not": 0} {
		t.Run(name, func(t *testing.T) {
			s := simulate(usual, 1, false, "blue", "green")
			s.wire("green").rtt = 100 * ms
			s.run(begin)
			s.away["peer1"] = true
			s.run(10 * time.Second)
			s.away["peer1"] = false
			for range 5000 {
				s.run(ms)
				blue, green := s.view().Sample("peer1", "blue"), s.view().Sample("peer1", "green")
				if blue.State == Alive && green.Probed && !green.Answers {
					t.Fatalf("green shows as %+v beside blue %+v", green, blue)
				}
			}
			s.expect(t, "green", Alive)
		})
	}
}

func TestAPathThatFailedWhileThePeersAgentWasAwayIsUnreachable(t *testing.T) {
	s := simulate(usual, 1, false, "blue", "green")
	s.run(time.Second)
	s.away["peer1"] = true
	s.run(10 * time.Second)
	s.wire("green").blocked = true
	s.away["peer1"] = false
	s.run(5 * time.Second)
	s.expect(t, "green", Dead)
}

func TestADeadPathStaysSoWhileThePeersAgentRestarts(t *testing.T) {
	s := simulate(usual, 1, true, "blue", "green")
	s.run(time.Second)
	s.wire("blue").blocked = true
	s.run(time.Second)
	s.expect(t, "blue", Dead)
	s.away["peer1"] = true
	s.run(30 * time.Second)
	s.expect(t, "blue", Dead)
	s.run(2 * time.Minute)
	s.expect(t, "blue", Unknown)
}

func TestAPathThatNeverWorkedIsDeadBesideOneThatDoes(t *testing.T) {
	s := simulate(usual, 1, true, "blue", "green")
	s.wire("blue").blocked = true
	s.run(2 * time.Second)
	s.expect(t, "blue", Dead)
}

func TestANeighbourThatFailsIsConfirmedAtOnce(t *testing.T) {
	s := simulate(usual, 1, false, "blue", "green")
	s.run(10 * time.Second)
	s.fails("blue")
	s.run(100 * ms)
	s.expect(t, "blue", Alive) // it answered
	s.wire("blue").blocked = true
	failed := s.now
	s.fails("blue")
	s.run(100 * ms)
	s.expect(t, "blue", Dead)
	if took := s.changeOf("blue", Dead, failed) - failed; took > 60*ms {
		t.Errorf("dead after %s", took)
	}
}

func TestAPathIsLostWhereTheKernelGivesItUpToo(t *testing.T) {
	tests := map[string]struct {
		happens func(*simulation)
		lost    bool
	}{
		"probes alone are not answered": {func(s *simulation) { s.run(time.Second) }, false},
		"then the kernel asks in vain":  {func(s *simulation) { s.run(time.Second); s.fails("blue"); s.run(time.Second) }, true},
		"it did before":                 {func(s *simulation) { s.fails("blue"); s.run(time.Second) }, true},
		"another one asks in vain":      {func(s *simulation) { s.run(time.Second); s.fails("green"); s.run(time.Second) }, false},
		"the kernel has an answer after all": {func(s *simulation) {
			s.run(time.Second)
			s.fails("blue")
			s.resolves("blue")
			s.run(time.Second)
		}, false},
		"it had one before probes were lost": {func(s *simulation) { s.fails("blue"); s.resolves("blue"); s.run(time.Second) }, false},
		"the peer falls silent on all paths": {func(s *simulation) {
			s.run(time.Second)
			s.fails("blue")
			s.away["peer1"] = true
			s.run(5 * time.Minute)
		}, true},
		"some probes are answered": {func(s *simulation) {
			s.run(time.Second)
			s.fails("blue")
			s.wire("blue").blocked = false
			s.run(60 * ms)
		}, true},
		"it is alive again": {func(s *simulation) {
			s.run(time.Second)
			s.fails("blue")
			s.wire("blue").blocked = false
			s.run(time.Second)
		}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := simulate(usual, 1, true, "blue", "green")
			s.run(10 * time.Second)
			s.wire("blue").blocked = true
			test.happens(s)
			lost := s.view().Lost()
			if got := lost["peer1"]["blue"]; got != test.lost || len(lost["peer2"]) > 0 || lost["peer1"]["green"] {
				t.Errorf("lost are %v, and of blue it is %t", lost, test.lost)
			}
			if told := s.changes.lost; test.lost && !told {
				t.Error("nobody is told")
			}
		})
	}
}

// fails and resolves are what the kernel finds when it asks for the peer's address.
func (s *simulation) fails(path string) {
	target := s.targets[pair{"peer1", path}]
	s.neighbourFailed(s.now, neighbour{target.Interface, target.Remote})
}

func (s *simulation) resolves(path string) {
	target := s.targets[pair{"peer1", path}]
	s.neighbourAnswered(neighbour{target.Interface, target.Remote})
}

func TestThePeersOtherAddressCountsTooWhereTheKernelGivesUp(t *testing.T) {
	s := simulate(usual, 1, true, "blue", "green")
	other := netip.MustParseAddr("fd00::1")
	wanted := pathsTo(1, true, "blue", "green")
	wanted[0].Other = other
	s.run(time.Second)
	s.setTargets(s.now, wanted)
	s.expect(t, "blue", Alive) // what is known of it is kept
	s.wire("blue").blocked = true
	s.run(time.Second)
	s.neighbourFailed(s.now, neighbour{2, other})
	if lost := s.view().Lost(); len(lost) > 0 {
		t.Errorf("%v is lost because of an address on another link", lost)
	}
	s.neighbourFailed(s.now, neighbour{1, other})
	if !s.view().Lost()["peer1"]["blue"] {
		t.Error("blue is not lost")
	}
	s.setTargets(s.now, pathsTo(1, true, "blue", "green"))
	s.neighbourAnswered(neighbour{1, other})
	if !s.view().Lost()["peer1"]["blue"] {
		t.Error("blue is not lost because of an address that the peer has no longer")
	}
	s.setTargets(s.now, nil)
	if len(s.at) > 0 {
		t.Errorf("%v is remembered", s.at)
	}
}

func TestTheRoundTripFollowsThePath(t *testing.T) {
	s := simulate(usual, 1, true, "blue", "green")
	for _, rtt := range []time.Duration{40 * ms, 200 * ms, 60 * ms, 500 * time.Microsecond} {
		s.wire("blue").rtt = rtt
		s.run(time.Second)
		got := s.view().Sample("peer1", "blue").RTT
		if (got - rtt).Abs() > max(rtt/20, 2*ms) {
			t.Errorf("%s after a second at %s", got, rtt)
		}
	}
	s.expect(t, "blue", Alive)
}

func TestLossIsMeasured(t *testing.T) {
	s := simulate(usual, 1, true, "blue", "green")
	s.wire("blue").loss = 0.25
	var sum float64
	for range 100 {
		s.run(3200 * ms)
		sum += s.view().Sample("peer1", "blue").Loss
	}
	if mean := sum / 100; mean < 0.15 || mean > 0.35 {
		t.Errorf("a loss of 0.25 measured %.2f", mean)
	}
	if loss := s.view().Sample("peer1", "green").Loss; loss != 0 {
		t.Errorf("the other path lost %.2f", loss)
	}
}

func TestALateAnswerTakesItsLossBack(t *testing.T) {
	s := simulate(usual, 1, true, "blue", "green")
	s.run(time.Second)
	s.wire("blue").rtt = 55 * ms
	s.run(time.Second)
	if s.totals["blue"].lost == 0 {
		t.Error("no answer was late")
	}
	if loss := s.view().Sample("peer1", "blue").Loss; loss != 0 {
		t.Errorf("late answers left a loss of %.2f", loss)
	}
}

func TestNothingIsLostByAPeerThatIsAwayNowAndThen(t *testing.T) {
	s := simulate(usual, 1, false, "blue", "green")
	for i := range 40 {
		s.run(10*time.Second + time.Duration(i)*11*ms)
		s.away["peer1"] = true
		s.run(2500 * ms)
		s.away["peer1"] = false
	}
	for path, totals := range s.totals {
		if totals.lost > 0 {
			t.Errorf("%s lost %d probes", path, totals.lost)
		}
	}
}

func TestAPathThatAnswersAgainIsNotDeadByOlderProbes(t *testing.T) {
	s := simulate(usual, 1, true, "blue", "green")
	s.wire("green").rtt = 400 * ms // it proves late that the peer was there
	s.run(5 * time.Second)
	s.wire("blue").blocked = true
	s.run(150 * ms)
	s.wire("blue").blocked = false
	s.run(5 * time.Second)
	if s.totals["blue"].lost < lostToDie {
		t.Errorf("%d probes were lost", s.totals["blue"].lost)
	}
	if s.count(Dead) > 0 {
		t.Errorf("a path died: %v", s.history)
	}
}

func TestTheTimeForAnAnswerBeginsWhenTheNICHasTheProbe(t *testing.T) {
	s := simulate(usual, 1, true, "blue", "green")
	s.run(time.Second)
	target := s.targets[pair{"peer1", "blue"}]
	p := s.probe(target, s.now)
	p.wall = 1000 * time.Second
	s.sentAt(p, s.now, true)
	if want := s.now + queued + target.timeout(); p.deadline != want {
		t.Errorf("until the NIC has it, it may take until %s, want %s", p.deadline, want)
	}
	s.left(p.nonce, p.wall+30*ms)
	if want := s.now + 30*ms + target.timeout(); p.deadline != want {
		t.Errorf("then it may take until %s, want %s", p.deadline, want)
	}
	reply := received{packet: packet{kind: kindReply, held: 2 * ms}, at: p.wall + 45*ms}
	if rtt := p.roundTrip(s.now+46*ms, reply); rtt != 13*ms {
		t.Errorf("45 ms with 30 in the queue and 2 at the responder are a round trip of %s", rtt)
	}
	reply.queued = ms
	if wait := p.wait(s.now+46*ms, reply); wait != 44*ms {
		t.Errorf("with one of the 2 in a queue, what a flow's packet waits is %s", wait)
	}
	reply.at = p.wall - time.Hour // the clock was set
	if rtt := p.roundTrip(s.now+46*ms, reply); rtt != 44*ms {
		t.Errorf("with a clock that was set, the round trip is %s", rtt)
	}
}

func TestAPathThatKeepsDyingMustAnswerForLonger(t *testing.T) {
	s := simulate(usual, 1, true, "blue", "green")
	s.run(time.Second)
	for range 40 { // blocked for half of each second
		s.wire("blue").blocked = true
		s.run(500 * ms)
		s.wire("blue").blocked = false
		s.run(500 * ms)
	}
	if deaths := s.count(Dead); deaths > 4 {
		t.Errorf("it died %d times", deaths)
	}
	s.run(10 * time.Second)
	s.expect(t, "blue", Alive)
}

func TestHowOftenProbesAreSent(t *testing.T) {
	for name, c := range map[string]struct {
		peers    int
		active   bool
		paths    []string
		from, to float64 // probes a second
	}{
		"an active peer on three paths": {1, true, []string{"blue", "green", "red"}, 59, 61},
		"an idle one":                   {1, false, []string{"blue", "green", "red"}, 2.9, 3.1},
		"a hundred idle ones":           {100, false, []string{"blue", "green", "red"}, 295, 305},
		"a hundred and one":             {101, false, []string{"blue", "green", "red"}, 0, 0},
		"so many that the cap counts":   {100, true, []string{"blue", "green", "red"}, 1900, 2001},
	} {
		t.Run(name, func(t *testing.T) {
			s := simulate(usual, c.peers, c.active, c.paths...)
			s.run(10 * time.Second)
			before := len(s.sent)
			s.run(10 * time.Second)
			rate := float64(len(s.sent)-before) / 10
			if rate < c.from || rate > c.to {
				t.Errorf("%.1f probes a second, want %.0f to %.0f", rate, c.from, c.to)
			}
			if s.count(Dead) > 0 {
				t.Errorf("paths died: %v", s.history)
			}
		})
	}
}

func TestThePathsToAPeerAreProbedTogether(t *testing.T) {
	s := simulate(usual, 1, false, "blue", "green", "red")
	s.run(3 * time.Second) // the first probes are spread
	s.sent = nil
	s.run(10 * time.Second)
	for i, probe := range s.sent {
		if first := s.sent[i-i%3]; probe.at-first.at > together {
			t.Errorf("probe %d of %v was sent %s after the first of its peer", i, probe.of, probe.at-first.at)
		}
	}
	if len(s.sent) != 30 {
		t.Errorf("%d probes in 10 s, want 10 on each of three paths", len(s.sent))
	}
}

func TestTheCapHoldsInEverySecondAlsoWhenAPathOfManyPeersDies(t *testing.T) {
	s := simulate(usual, 500, true, "blue", "green")
	s.run(5 * time.Second)
	for of, wire := range s.wires {
		wire.blocked = of.path == "blue"
	}
	s.run(5 * time.Second)
	for i := range s.sent {
		for j := i; j < len(s.sent) && s.sent[j].at < s.sent[i].at+time.Second; j++ {
			if j-i > usual.rate+usual.burst {
				t.Fatalf("%d probes within a second", j-i)
			}
		}
	}
	dead := 0
	for of, target := range s.targets {
		if target.state == Dead && of.path == "blue" {
			dead++
		}
	}
	if dead != 500 {
		t.Errorf("%d of 500 peers' paths are dead", dead)
	}
}

func TestAPeerGetsProbesOnDemandInALargeCluster(t *testing.T) {
	s := simulate(usual, 200, false, "blue", "green")
	s.run(time.Second)
	s.expect(t, "blue", Unknown)
	targets := pathsTo(200, false, "blue", "green")
	targets[0].Active, targets[1].Active = true, true
	s.setTargets(s.now, targets)
	s.run(100 * ms)
	s.expect(t, "blue", Alive)
	targets[0].Active, targets[1].Active = false, false
	s.setTargets(s.now, targets)
	s.run(100 * ms)
	s.expect(t, "blue", Unknown)
	if len(s.sent) > 10 {
		t.Errorf("%d probes", len(s.sent))
	}
}

func TestAnswersThatNobodyAskedForDoNotCount(t *testing.T) {
	s := simulate(usual, 1, true, "blue", "green")
	s.wire("blue").blocked = true
	s.step()
	var asked *probe
	for _, p := range s.probes {
		if p.target.Path == "blue" {
			asked = p
		}
	}
	reply := func(kind uint8, nonce uint64, from netip.Addr) received {
		return received{packet: packet{kind: kind, nonce: nonce}, from: netip.AddrPortFrom(from, DefaultPort)}
	}
	for name, c := range map[string]struct {
		reply received
		nic   int
	}{
		"another nonce":    {reply(kindReply, asked.nonce+1, asked.target.Remote), 1},
		"another sender":   {reply(kindReply, asked.nonce, netip.MustParseAddr("10.9.9.9")), 1},
		"by another NIC":   {reply(kindReply, asked.nonce, asked.target.Remote), 2},
		"no answer at all": {reply(kindRequest, asked.nonce, asked.target.Remote), 1},
	} {
		if s.answered(s.now, c.reply, c.nic) {
			t.Errorf("%s counts", name)
		}
	}
	var told []string
	s.tell = func(peer, path string) { told = append(told, peer+" "+path) }
	genuine := reply(kindReply, asked.nonce, asked.target.Remote)
	if !s.answered(s.now, genuine, 1) {
		t.Error("the genuine answer does not count")
	}
	if s.answered(s.now, genuine, 1) {
		t.Error("its repetition counts")
	}
	if len(told) != 1 || told[0] != asked.target.Peer+" blue" {
		t.Errorf("told of the answers %v", told)
	}
}

func TestTargetsThatStayKeepWhatIsKnown(t *testing.T) {
	s := simulate(usual, 2, true, "blue", "green")
	s.run(time.Second)
	s.setTargets(s.now, pathsTo(1, false, "blue", "green"))
	s.expect(t, "blue", Alive)
	if len(s.targets) != 2 || len(s.peers) != 1 {
		t.Errorf("%d targets of %d peers stay", len(s.targets), len(s.peers))
	}
	moved := pathsTo(1, false, "blue", "green")
	moved[0].Remote = netip.MustParseAddr("10.0.7.7")
	s.setTargets(s.now, moved)
	s.expect(t, "blue", Unknown)
	s.setTargets(s.now, nil)
	s.run(5 * time.Second)
	if len(s.targets)+len(s.peers)+len(s.probes)+len(s.checks)+len(s.due) != 0 {
		t.Errorf("something stays of targets that are gone: %d probes, %d and %d events", len(s.probes), len(s.checks), len(s.due))
	}
}

func TestAResponderCanAskForFewerProbes(t *testing.T) {
	s := simulate(usual, 1, true, "blue", "green")
	s.run(time.Second)
	for _, target := range s.targets {
		target.asked = 400 * ms
	}
	target := s.targets[pair{"peer1", "blue"}]
	if got := s.interval(target); got != 400*ms {
		t.Errorf("an interval of %s", got)
	}
	s.run(time.Second) // answers that ask for nothing
	if got := s.interval(target); got != usual.active {
		t.Errorf("an interval of %s afterwards", got)
	}
}

// However paths behave, a path does not die and revive more often than its dwell
// allows, the only path that answers is never dead, and what is remembered is bounded.
func TestStatesDoNotFlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := simulate(usual, 1, true, "blue", "green")
		s.random = rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		s.run(time.Second)
		steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) wire {
			return wire{
				rtt:     time.Duration(rapid.IntRange(50, 300_000).Draw(t, "rtt")) * time.Microsecond,
				blocked: rapid.Bool().Draw(t, "blocked"),
				loss:    rapid.SampledFrom([]float64{0, 0, 0.05, 0.3, 0.6}).Draw(t, "loss"),
			}
		}), 1, 60).Draw(t, "steps")
		for _, step := range steps {
			*s.wire("blue") = step
			s.run(time.Duration(rapid.IntRange(1, 2000).Draw(t, "ms")) * ms)
		}
		if s.count(Dead) > 0 && slices.ContainsFunc(s.history, func(c change) bool { return c.of.path == "green" && c.to == Dead }) {
			t.Fatalf("the path that answers died: %v", s.history)
		}
		s.checkDwells(t)
		if len(s.probes) > 200 {
			t.Fatalf("%d probes are remembered", len(s.probes))
		}
	})
}

func (s *simulation) checkDwells(t *rapid.T) {
	var died time.Duration
	deaths := 0
	for _, c := range s.history {
		switch {
		case c.to == Dead:
			died = c.at
			deaths++
		case c.to == Alive && deaths > 0 && c.of.path == "blue":
			if c.at-died < 2*quick {
				t.Fatalf("alive %s after it died: %v", c.at-died, s.history)
			}
		}
	}
	// Each death within relapse of a revival doubles what the next revival takes.
	if most := 8 + int((s.now)/(mostToRevive*usual.active)); deaths > most {
		t.Fatalf("%d deaths in %s, want %d at most", deaths, s.now, most)
	}
}

// heardOn has flows answered all the time on some paths.
func (s *simulation) heardOn(paths ...string) {
	s.heard = func(_, path string) time.Duration {
		if slices.Contains(paths, path) {
			return ms
		}
		return -1
	}
}

func TestFlowsStandInForProbesWhereTheyAreAnsweredOn(t *testing.T) {
	often, rarely := [2]float64{58, 61}, [2]float64{11, 13}
	for name, c := range map[string]struct {
		heard  []string
		judged bool
		idle   bool
		rtt    time.Duration
		want   [2]float64 // probes a second on three paths
	}{
		"all paths":                               {heard: []string{"blue", "green", "red"}, rtt: ms, want: rarely},
		"all but one":                             {heard: []string{"blue", "green"}, rtt: ms, want: often},
		"none":                                    {rtt: ms, want: often},
		"all paths, which preferences compare":    {heard: []string{"blue", "green", "red"}, judged: true, rtt: ms, want: often},
		"all paths, from a node beyond 50 ms":     {heard: []string{"blue", "green", "red"}, rtt: 60 * ms, want: often},
		"all paths, of a node nothing is sent to": {heard: []string{"blue", "green", "red"}, idle: true, rtt: ms, want: [2]float64{2.9, 3.1}},
	} {
		t.Run(name, func(t *testing.T) {
			s := simulate(usual, 1, !c.idle, "blue", "green", "red")
			for _, wire := range s.wires {
				wire.rtt = c.rtt
			}
			targets := pathsTo(1, !c.idle, "blue", "green", "red")
			for i := range targets {
				targets[i].Judged = c.judged
			}
			s.setTargets(s.now, targets)
			s.heardOn(c.heard...)
			s.run(3 * time.Second)
			before := len(s.sent)
			s.run(10 * time.Second)
			if rate := float64(len(s.sent)-before) / 10; rate < c.want[0] || rate > c.want[1] {
				t.Errorf("%.1f probes a second, want %.0f to %.0f", rate, c.want[0], c.want[1])
			}
		})
	}
}

func TestAPathDiesUnderFlowsThatStoodInForItsProbes(t *testing.T) {
	for name, c := range map[string]struct {
		heard  []string // once it loses everything
		within time.Duration
	}{
		"as soon as without them where these are answered no more": {[]string{"green", "red"}, 150 * ms},
		"also where what comes in for them is no answer":           {[]string{"blue", "green", "red"}, heardInterval + 150*ms},
	} {
		t.Run(name, func(t *testing.T) {
			for phase := range 25 {
				s := simulate(usual, 1, true, "blue", "green", "red")
				s.heardOn("blue", "green", "red")
				s.run(3*time.Second + time.Duration(phase)*10*ms)
				s.wire("blue").blocked = true
				s.heardOn(c.heard...)
				since := s.now
				s.run(time.Second)
				if died := s.changeOf("blue", Dead, since); died == 0 || died-since > c.within {
					t.Errorf("dead after %s, want within %s; 0s for never", max(0, died-since), c.within)
				}
				s.expect(t, "green", Alive)
			}
		})
	}
}

func TestANeighbourThatFailsIsAskedForAtOnceAlsoWhereFlowsAreAnswered(t *testing.T) {
	s := simulate(usual, 1, true, "blue", "green")
	s.heardOn("blue", "green")
	s.run(3 * time.Second)
	s.wire("blue").blocked = true
	since := s.now
	s.neighbourFailed(s.now, neighbour{1, s.targets[pair{"peer1", "blue"}].Remote})
	s.run(heardInterval / 2)
	if died := s.changeOf("blue", Dead, since); died == 0 {
		t.Errorf("blue is not dead %s after the kernel could not resolve it", s.now-since)
	}
}
