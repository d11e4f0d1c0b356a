// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/testutil"
	"braid.dev/braid/plugin"
)

// busyNodes are two nodes whose agents answer `rates`; that of node2 does so while it is
// well.
func busyNodes(t *testing.T, well *atomic.Bool) (*scene, *nodes) {
	t.Helper()
	n := &nodes{agent: func(agent string, command []string, in io.Reader, out io.Writer) error {
		line := oneLine(clientRates)
		if agent == "agent-node2" {
			line = oneLine(serverRates)
		}
		if slices.Contains(command, "--limit=0") {
			line = manySubflows
		}
		if slices.ContainsFunc(command, func(flag string) bool { return strings.HasPrefix(flag, "--nic=") }) {
			line = nicsOf(command)
		}
		if agent == "agent-node2" && !well.Load() {
			return fmt.Errorf("%s has a headache", agent)
		}
		fmt.Fprintln(out, line)
		if !slices.Contains(command, "--count=1") { // until whoever asked is gone
			_, _ = io.Copy(io.Discard, in)
		}
		return nil
	}}
	s := newNodeScene(t, n)
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "braid-system"}}, nil)
	for i, pod := range []string{"client", "server"} {
		node, address := fmt.Sprintf("node%d", i+1), fmt.Sprintf("192.0.2.%d", i+1)
		s.addKubelet(node, address)
		s.addSystemPod("agent", "agent-"+node, node, address)
		endpoint := v1alpha1.PlanEndpoint{
			UID: types.UID("uid-of-" + pod), Namespace: "shop", Name: pod, Addresses: []string{fmt.Sprintf("10.0.%d.1", i+1)},
			Policy:   v1alpha1.PolicyReference{Kind: "MPTCPPolicy", Namespace: "shop", Name: "spread"},
			Subflows: v1alpha1.PlanSubflows{Manager: v1alpha1.SubflowManagerKernel, Count: 2},
		}
		s.addPlan(node, endpoint, nil)
	}
	s.addNICs("node1", v1alpha1.NodePath{Name: "red", Interface: "eth3", State: v1alpha1.LinkUp},
		v1alpha1.NodePath{Name: "blue", Interface: "eth1", State: v1alpha1.LinkUp, PeersProbed: 2, PeersAlive: 2},
		v1alpha1.NodePath{Name: "green", Interface: "eth2", State: v1alpha1.LinkUp, PeersProbed: 2})
	s.addNICs("node2", v1alpha1.NodePath{Name: "blue", Interface: "eth1", State: v1alpha1.LinkUp, PeersProbed: 1, PeersAlive: 1},
		v1alpha1.NodePath{Name: "green", State: v1alpha1.LinkDown, Message: "the node has no such NIC"})
	capacity := resource.MustParse("100M")
	blue := &v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}
	blue.Spec.Interfaces, blue.Spec.Capacity = []v1alpha1.InterfacePattern{"eth1"}, &capacity
	s.create(blue, nil)
	return s, n
}

// addNICs has a node's agent tell of its paths.
func (s *scene) addNICs(node string, paths ...v1alpha1.NodePath) {
	s.t.Helper()
	member := &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: node}}
	s.create(member, func() { member.Status.Paths = paths })
}

const (
	clientRates = `{"time":"2026-11-22T01:00:00Z","total":2,"busy":[
		{"endpoint":"shop/client","token":"0x00000001","local":"10.0.1.1:40001","remote":"10.0.2.1:5001","path":"blue","backup":false,"rttMicroseconds":13800,"sentBitsPerSecond":95300000,"receivedBitsPerSecond":1200},
		{"endpoint":"shop/client","token":"0x00000001","local":"10.0.1.1:40002","remote":"10.0.2.1:5001","backup":true,"rttMicroseconds":280,"sentBitsPerSecond":0,"receivedBitsPerSecond":0}]}`
	serverRates = `{"time":"2026-11-22T01:00:00Z","total":9,"busy":[
		{"endpoint":"shop/server","token":"0x00000001","local":"10.0.2.1:5001","remote":"10.0.1.1:40001","path":"blue","backup":false,"rttMicroseconds":120000,"sentBitsPerSecond":1200,"receivedBitsPerSecond":95300000},
		{"endpoint":"shop/server","local":"[fd00::2]:5001","remote":"[fd00::9]:40000","path":"green","standIn":"red","backup":false,"sentBitsPerSecond":999600,"receivedBitsPerSecond":1000000000}]}`
)

// nicRates are of NICs, one of which has lost its carrier, and is on no other node.
const nicRates = `{"time":"2026-11-22T01:00:00Z","total":2,"busy":[],
	"paths":[{"path":"blue","subflows":3,"sentBitsPerSecond":92000000,"receivedBitsPerSecond":1000}],
	"nics":[
		{"name":"eth1","up":true,"speedMbit":10000,"sentBitsPerSecond":96000000,"receivedBitsPerSecond":2000000},
		{"name":"eth2","up":true,"speedMbit":1000,"sentBitsPerSecond":0,"receivedBitsPerSecond":450000000},
		{"name":"eth3","up":false,"sentBitsPerSecond":0,"receivedBitsPerSecond":0}]}`

// nicsOf has of those what a command asks for.
func nicsOf(command []string) string {
	var reading agentapi.Reading
	if err := json.Unmarshal([]byte(nicRates), &reading); err != nil {
		panic(err)
	}
	reading.NICs = slices.DeleteFunc(reading.NICs, func(nic agentapi.NICRate) bool { return !slices.Contains(command, "--nic="+nic.Name) })
	line, _ := json.Marshal(reading) // as it was read
	return string(line)
}

// manySubflows are as many as a node may well have, at rates of their own.
var manySubflows = func() string {
	var b strings.Builder
	b.WriteString(`{"total":10000,"busy":[`)
	for i := range 10000 {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, `{"endpoint":"shop/client","local":"10.0.1.1:%d","remote":"10.0.2.1:5001","path":"blue","backup":false,"sentBitsPerSecond":%d}`, 20000+i, 10000000-i*1000)
	}
	return b.String() + "]}"
}()

func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "") }

// TestTop shares an API server, which takes long to start.
func TestTop(t *testing.T) {
	var well atomic.Bool
	well.Store(true)
	s, n := busyNodes(t, &well)
	for _, test := range []struct {
		name string
		run  func(*scene)
	}{
		{"shows what subflows carry", func(s *scene) { topShowsWhatSubflowsCarry(s, n) }},
		{"follows keys in a terminal", topFollowsKeys},
		{"shows no more of many subflows than fits", topShowsWhatFits},
		{"names peers on nodes that are not asked", topNamesPeersElsewhere},
		{"shows what NICs carry", func(s *scene) { topShowsWhatNICsCarry(s, n) }},
		{"keeps NICs up to date in a terminal", topFollowsNICs},
		{"tells mistakes", topTellsMistakes},
		{"names the nodes that it cannot read", func(s *scene) {
			well.Store(false)
			topNamesWhatItCannotRead(s)
		}},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(s.in(t)) })
	}
}

func topShowsWhatSubflowsCarry(s *scene, n *nodes) {
	t := s.t
	out, err := s.run("top")
	if err != nil {
		t.Error(err)
	}
	s.golden("top", out)
	if out, err = s.run("top", "client", "--namespace", "shop", "--sort", "rtt", "--path", "blue"); err != nil {
		t.Error(err)
	}
	want := []string{
		"agent-node1 /braid-agent rates --attached --every=2s --limit=1000 --count=1",
		"agent-node1 /braid-agent rates --attached --every=2s --limit=1000 --path=blue shop/client --count=1",
		"agent-node2 /braid-agent rates --attached --every=2s --limit=1000 --count=1",
	}
	if got := n.asked(); !slices.Equal(got, want) {
		t.Errorf("the agents were asked %q, want %q", got, want)
	}
	if !strings.HasPrefix(strings.SplitN(out, "\n", 3)[1], "shop/client   shop/server:5001   blue") {
		t.Errorf("by RTT:\n%s", out)
	}
	if out, err = s.run("top", "--output", "json"); err != nil {
		t.Error(err)
	}
	var found plugin.Top
	if err := json.Unmarshal([]byte(out), &found); err != nil || found.Total != 11 || len(found.Subflows) != 4 ||
		found.Subflows[1].Peer == "" || found.Subflows[0].Remote != "[fd00::9]:40000" {
		t.Errorf("as JSON: %v\n%s", err, out)
	}
}

func topNamesWhatItCannotRead(s *scene) {
	out, err := s.run("top", "--once")
	if !errors.Is(err, plugin.ErrNotFine) {
		s.t.Errorf("the error is %v", err)
	}
	s.golden("top_unread", out)
	if out, err = s.run("top", "--paths"); !errors.Is(err, plugin.ErrNotFine) {
		s.t.Errorf("the error is %v", err)
	}
	s.golden("top_paths_unread", out)
}

func topShowsWhatNICsCarry(s *scene, n *nodes) {
	t := s.t
	asked := len(n.asked())
	out, err := s.run("top", "--paths")
	if err != nil {
		t.Error(err)
	}
	s.golden("top_paths", out)
	want := []string{
		"agent-node1 /braid-agent rates --attached --every=2s --limit=1 --nic=eth1 --nic=eth2 --nic=eth3 --count=1",
		"agent-node2 /braid-agent rates --attached --every=2s --limit=1 --nic=eth1 --count=1",
	}
	for _, one := range want {
		if got := n.asked(); len(got) != asked+len(want) || !slices.Contains(got, one) {
			t.Errorf("the agents were asked %q, not %q", got, one)
		}
	}
	if out, err = s.run("top", "--paths", "--node=node1", "--path=blue", "--output=json"); err != nil {
		t.Error(err)
	}
	s.golden("top_paths_json", out)
	if out, err = s.run("top", "--paths", "--path=white", "--output=yaml"); err != nil || out != "paths: []\n" {
		t.Errorf("of a path that is none: %v\n%s", err, out)
	}
}

func topFollowsNICs(s *scene) {
	t := s.t
	screen, done := s.onScreen("top", "--paths")
	screen.until("measured", inOrder("5 of 5 NICs, sent 192 Mbit/s", "OF CAPACITY", "node1", "blue", "##########", "green", "node2", "q quit"))
	screen.press("/GREEN\r")
	screen.until("filtered", inOrder("2 of 5 NICs", "with GREEN", "node1", "node2", "-##########"))
	member := &v1alpha1.MPTCPNode{}
	if err := s.client.Get(t.Context(), client.ObjectKey{Name: "node2"}, member); err != nil {
		t.Fatal(err)
	}
	member.Status.Paths[1] = v1alpha1.NodePath{Name: "green", Interface: "eth2", State: v1alpha1.LinkUp}
	if err := s.client.Status().Update(t.Context(), member); err != nil {
		t.Fatal(err)
	}
	screen.until("asked for the NIC that came", inOrder("2 of 5 NICs", "node2", "green", "eth2", "Up", "450 Mbit/s"))
	screen.press("rn\x1b[C\x1b[Bq") // no columns to sort by
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func topTellsMistakes(s *scene) {
	tests := map[string]struct{ command, says string }{
		"a column that is none":         {"top --sort colour", "must be one of pod, peer, path, rate"},
		"NICs of a pod":                 {"top web --paths --namespace shop", "leave pod and namespace out"},
		"NICs sorted as subflows":       {"top --paths --sort rtt", "none of the others can be"},
		"Braid in another namespace":    {"top --system-namespace elsewhere", "--system-namespace"},
		"an interval that is no time":   {"top --every soon", "invalid argument"},
		"a namespace without such pods": {"top --namespace nowhere", ""},
	}
	for name, test := range tests {
		out, err := s.run(strings.Fields(test.command)...)
		if test.says == "" {
			if err != nil || !strings.Contains(out, "no pod that a policy selects has a subflow") {
				s.t.Errorf("%s: %v: %s", name, err, out)
			}
		} else if err == nil || !strings.Contains(err.Error(), test.says) {
			s.t.Errorf("%s: the error is %v, wanted one that says %q", name, err, test.says)
		}
	}
}

// screenOf is a terminal of this many lines, and what was written to it.
type screenOf struct {
	t            *testing.T
	user, inside *os.File
	mutex        sync.Mutex
	written      bytes.Buffer
}

// onScreen runs a command on a terminal; the channel has how it ended.
func (s *scene) onScreen(arguments ...string) (*screenOf, <-chan error) {
	s.t.Helper()
	screen, done := newScreen(s.t), make(chan error, 1)
	go func() {
		command := plugin.Command(screen.inside, "test")
		command.SetIn(screen.inside)
		done <- s.runWith(command, arguments...)
	}()
	return screen, done
}

func newScreen(t *testing.T) *screenOf {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(user.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 12, Col: 200})
	}
	if err != nil {
		t.Fatal(err)
	}
	inside, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &screenOf{t: t, user: user, inside: inside}
	t.Cleanup(func() { user.Close(); inside.Close() })
	go func() {
		for buffer := make([]byte, 4096); ; {
			n, err := user.Read(buffer)
			if err != nil {
				return
			}
			s.mutex.Lock()
			s.written.Write(buffer[:n])
			s.mutex.Unlock()
		}
	}()
	return s
}

// last is the screen as it was drawn last, and everything behind it.
func (s *screenOf) last() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	text := s.written.String()
	return text[max(0, strings.LastIndex(text, "\x1b[H")):]
}

// until waits until the screen has this.
func (s *screenOf) until(what string, is func(string) bool) {
	s.t.Helper()
	testutil.Retry(s.t, 30*time.Second, func() error {
		if screen := s.last(); !is(screen) {
			return fmt.Errorf("not %s:\n%s", what, strings.ReplaceAll(screen, "\x1b", "ESC"))
		}
		return nil
	})
}

func (s *screenOf) press(keys string) {
	s.t.Helper()
	if _, err := s.user.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// inOrder finds these texts one after the other, and none after a text that has a
// minus before it.
func inOrder(texts ...string) func(string) bool {
	return func(screen string) bool {
		for _, text := range texts {
			if absent, ok := strings.CutPrefix(text, "-"); ok {
				if strings.Contains(screen, absent) {
					return false
				}
				continue
			}
			_, after, found := strings.Cut(screen, text)
			if !found {
				return false
			}
			screen = after
		}
		return true
	}
}

func topFollowsKeys(s *scene) {
	t := s.t
	screen, done := s.onScreen("top")
	fast, slow := "[fd00::9]:40000", "280us"
	screen.until("sorted by rate", inOrder("4 of 11 subflows", "RATE*", fast, "shop/client", slow, "q quit"))
	for _, step := range []struct {
		keys, what string
		is         func(string) bool
	}{
		{"r", "reversed", inOrder("RATE^", slow, "shop/client", fast)},
		{"t", "sorted by RTT", inOrder("RTT*", "120ms", "13.8ms", slow, fast)},
		{"\x1b[C", "sorted by the next column", inOrder("BACKUP*", slow, fast)},
		{"\x1b[D\x1b[D\x1b[D", "sorted three to the left", inOrder("SENT*", "95.3 Mbit/s", fast)},
		{"/GREEN\r", "filtered", inOrder("1 of 11 subflows", "with GREEN", fast, "q quit", "-"+slow)},
		{"/x\x7f\x1b", "filtered no longer", inOrder("4 of 11 subflows", fast, slow)},
		{"n\x1b[B", "scrolled no further than there is something", inOrder("NODE*", "node1", "node2")},
	} {
		screen.press(step.keys)
		screen.until(step.what, step.is)
	}
	screen.press("q")
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("q does not leave")
	}
	screen.until("left as it was", inOrder("\x1b[?25h\x1b[?1049l"))
}

func topShowsWhatFits(s *scene) {
	t := s.t
	screen, done := s.onScreen("top", "--limit=0", "--sort=sent")
	screen.until("all counted", inOrder("20000 of 20000 subflows", "10.0 Mbit/s", "10.0 Mbit/s", "10.0 Mbit/s", "q quit"))
	if lines := strings.Count(screen.last(), "\n"); lines > 12 {
		t.Errorf("on 12 lines %d are drawn", lines)
	}
	screen.press("r")
	screen.until("the least first", inOrder("SENT^", "1.0 kbit/s", "1.0 kbit/s", "2.0 kbit/s"))
	screen.press("\x03")
	if err := <-done; err != nil {
		t.Error(err)
	}
}
