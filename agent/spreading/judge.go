// SPDX-License-Identifier: Apache-2.0

package spreading

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

// speaks is what the socket of a connection speaks.
type speaks int

const (
	speaksMPTCP speaks = iota
	speaksTCP
	fellBack // asked for MPTCP, and the peer did not answer so
)

// place is where the other end of a connection is, as the node's routes say.
type place int

const (
	// elsewhere is behind one of the node's NICs, and behind no node with an agent.
	elsewhere place = iota
	// here is this node: no NIC carries it.
	here
	// behindPeer is behind another node's agent.
	behindPeer
	// behindTunnel is behind a device that encapsulates.
	behindTunnel
)

// connection is one of an endpoint's that moved bytes in the interval.
type connection struct {
	speaks speaks
	place  place
	// The device and its kind, behindTunnel.
	tunnel string
	kind   paths.TunnelKind
	// paths of its subflows; none where no flow of the uplinks is known.
	paths    []string
	subflows int
	// bytes in the interval, and ever.
	bytes, ever uint64
	// known: it was there at the last look already. It is at least so old.
	known bool
	age   time.Duration
	// begunHere: the pod opened it, and so opens its further subflows. announced: its
	// peer gave an address for them.
	begunHere, announced bool
	// common are the paths to its peer that both ends can use.
	common int
	// shared: its subflows share a path, because several would give it less.
	shared bool
	// silent is how many of its subflows send the same again and again, and unanswered where
	// that goes; nil where it is not known.
	silent     int
	unanswered *lost
}

// lost is where the node's routes lead what nobody answers.
type lost struct {
	noRoute bool
	// The device that encapsulates it, and its kind.
	tunnel string
	kind   paths.TunnelKind
}

// observation is what was seen of one endpoint in an interval.
type observation struct {
	// open are the paths that its packets may take now, shut why the others are not.
	open []string
	shut []string
	// samePath: the policy keeps the subflows of a connection on one path.
	samePath bool
	// byKernel: the kernel's path manager opens its subflows, where a peer announces.
	byKernel bool
	// openAfter is what a connection needs before it gets further subflows: bytes, or
	// time. 0 where that does not decide.
	openAfterBytes uint64
	openAfterTime  time.Duration
	// upgradeFails: the policy asks for the upgrade of sockets, and the node cannot.
	upgradeFails bool
	// guest: it is a VM, of which flows are all that is seen.
	guest bool
	// crowded: connections wait for further subflows until there is room on the node's paths.
	crowded     bool
	connections []connection
	// over are connections that have ended, and had no flow.
	over []connection
	// unanswered are those that moved nothing, since nobody answers what they send.
	unanswered []lost
	// used are the paths of its latest flows, those included that have ended.
	used map[string]bool
}

// lasting is how many bytes a connection has moved, at the least, that should be on
// several paths.
const lasting = 1 << 20

// lasts is true for a connection that had what it takes to get further subflows, and the
// time for them.
func (o *observation) lasts(c *connection) bool {
	if !c.known || c.ever < lasting {
		return false
	}
	return o.openAfterBytes == 0 && o.openAfterTime == 0 ||
		o.openAfterBytes > 0 && c.ever >= 2*o.openAfterBytes || o.openAfterTime > 0 && c.age >= 2*o.openAfterTime
}

// verdict is what an endpoint's traffic does. It has no numbers, so that it changes only
// with what is to be said.
type verdict struct {
	state           v1alpha1.SpreadingState
	reason, message string
}

// judge finds what most bytes of an interval have in common; where that is the same, what
// most connections have.
func judge(o *observation) verdict {
	considered := o.connections
	if len(considered) == 0 && len(o.unanswered) > 0 {
		return o.notAnswered()
	}
	if len(considered) == 0 && len(o.used) == 0 {
		considered = o.over
	}
	if len(considered) == 0 {
		return o.ofFlowsAlone()
	}
	shares := map[verdict]share{}
	for i := range considered {
		v := o.verdictOf(&considered[i])
		shares[v] = share{shares[v].bytes + considered[i].bytes, shares[v].connections + 1}
	}
	return slices.MaxFunc(slices.Collect(maps.Keys(shares)), func(a, b verdict) int {
		return cmp.Or(shares[a].compare(shares[b]), cmp.Compare(b.reason, a.reason), cmp.Compare(b.message, a.message))
	})
}

type share struct {
	bytes       uint64
	connections int
}

func (s share) compare(other share) int {
	return cmp.Or(cmp.Compare(s.bytes, other.bytes), cmp.Compare(s.connections, other.connections))
}

// verdictOf goes from the outermost hindrance inwards: to mend an inner one alone would
// change nothing.
func (o *observation) verdictOf(c *connection) verdict {
	switch {
	case c.place == behindTunnel && !c.kind.Steered():
		return encapsulated(c)
	case c.place == elsewhere:
		return not(v1alpha1.ReasonPeerNotSelected, "its peers are behind no node that an agent runs on")
	case c.speaks != speaksMPTCP:
		return o.plain(c)
	case len(c.paths) > 1:
		return spread()
	case len(o.open) < 2 || o.samePath || c.common < 2:
		return o.noSecondPath()
	case o.severalPaths(c):
		return spread()
	case !o.lasts(c):
		return little()
	case c.place == behindTunnel:
		return not(v1alpha1.ReasonOverlayNotSteered, fmt.Sprintf("it leaves by %s (%s), to addresses that are no known node's", c.tunnel, c.kind))
	}
	return o.single(c)
}

// encapsulated is of what nobody can look into on the wire.
func encapsulated(c *connection) verdict {
	if c.kind == paths.TunnelEncrypted {
		return not(v1alpha1.ReasonEncryptedOverlay, fmt.Sprintf("it leaves by %s, which encrypts it", c.tunnel))
	}
	return not(v1alpha1.ReasonOverlayNotSteered, fmt.Sprintf("it leaves by %s, which puts it into packets of its own", c.tunnel))
}

func (o *observation) plain(c *connection) verdict {
	switch {
	case c.speaks == fellBack:
		return not(v1alpha1.ReasonPlainTCP, "its sockets ask for MPTCP, and what answers them does not speak it")
	case o.upgradeFails:
		return not(v1alpha1.ReasonUpgradeUnsupported, "its sockets are plain TCP, and this node cannot upgrade them")
	}
	return not(v1alpha1.ReasonPlainTCP, "its sockets, or those of its peers, are plain TCP")
}

// single is of a connection that lasts, on one path of several.
func (o *observation) single(c *connection) verdict {
	switch {
	case c.shared:
		return not(v1alpha1.ReasonOnePathUsed, "its connections' windows at the receivers are too small for paths that differ: their subflows share the best one")
	case c.subflows > 1:
		return not(v1alpha1.ReasonOnePathUsed, "its connections have several subflows, all on one path")
	case o.crowded:
		return verdict{v1alpha1.SpreadingUnknown, v1alpha1.ReasonLittleSent, "the connections of its namespace fill the node's paths: they get further subflows when there is room"}
	case !c.begunHere:
		return not(v1alpha1.ReasonPeerNotSelected, "its peers open no further subflow")
	case o.byKernel && !c.announced:
		return not(v1alpha1.ReasonPeerNotSelected, "its peers announce no address for further subflows")
	}
	return not(v1alpha1.ReasonOnePathUsed, "further subflows of its connections were not established")
}

// severalPaths: connections with one subflow each may have different paths. Those that
// last are compared with each other, the others with what went before too.
func (o *observation) severalPaths(c *connection) bool {
	paths := map[string]bool{}
	if !o.lasts(c) {
		maps.Copy(paths, o.used)
	}
	for i := range o.connections {
		if other := &o.connections[i]; other.place == behindPeer && other.speaks == speaksMPTCP {
			for _, path := range other.paths {
				paths[path] = true
			}
		}
	}
	return len(paths) > 1
}

// ofFlowsAlone is of connections that ended before they were looked at, and of guests,
// whose sockets are not the node's to see.
func (o *observation) ofFlowsAlone() verdict {
	switch {
	case len(o.used) > 1:
		return spread()
	case len(o.used) == 0:
		return verdict{v1alpha1.SpreadingUnknown, v1alpha1.ReasonNothingSent, o.nothing()}
	case len(o.open) < 2:
		return o.noSecondPath()
	case o.guest:
		return not(v1alpha1.ReasonOnePathUsed, "the guest's subflows of the last minute are all on one path: a guest opens further ones itself (ip mptcp endpoint add … subflow, ip mptcp limits), or follows its node's announcements (manager: Host)")
	}
	return little()
}

// notAnswered tells of most of what is not answered, and nothing else moves.
func (o *observation) notAnswered() verdict {
	counts := map[verdict]int{}
	for _, to := range o.unanswered {
		counts[to.verdict()]++
	}
	return slices.MaxFunc(slices.Collect(maps.Keys(counts)), func(a, b verdict) int {
		return cmp.Or(cmp.Compare(counts[a], counts[b]), cmp.Compare(a.message, b.message))
	})
}

func (l lost) verdict() verdict {
	const what = "nobody answers what its connections send"
	switch {
	case l.noRoute:
		return not(v1alpha1.ReasonNotAnswered, what+": the node has no route to their peers")
	case l.tunnel != "" && l.kind != "":
		return not(v1alpha1.ReasonNotAnswered, fmt.Sprintf("%s: it leaves by %s (%s)", what, l.tunnel, l.kind))
	case l.tunnel != "":
		return not(v1alpha1.ReasonNotAnswered, what+": it leaves by "+l.tunnel)
	}
	return not(v1alpha1.ReasonNotAnswered, what+": it goes to the nodes of their peers, and nothing comes back")
}

func (o *observation) nothing() string {
	if o.guest {
		return "no MPTCP subflow of the guest's went to other nodes in the last minute"
	}
	return "nothing was sent to other nodes"
}

func (o *observation) noSecondPath() verdict {
	switch {
	case len(o.open) > 1 && o.samePath:
		return not(v1alpha1.ReasonNoSecondPath, "its policy keeps the subflows of a connection on one path: subflows.mode is NDiffPorts")
	case len(o.open) > 1:
		return not(v1alpha1.ReasonNoSecondPath, "its peers' nodes can be reached on one path alone")
	case len(o.shut) == 0:
		return not(v1alpha1.ReasonNoSecondPath, "no second path is for it")
	}
	return not(v1alpha1.ReasonNoSecondPath, strings.Join(o.shut, ", "))
}

func not(reason, message string) verdict {
	return verdict{v1alpha1.SpreadingNotSpread, reason, message}
}

func spread() verdict {
	return verdict{state: v1alpha1.SpreadingSpread, reason: v1alpha1.ReasonSpread}
}

func little() verdict {
	return verdict{v1alpha1.SpreadingUnknown, v1alpha1.ReasonLittleSent, "no connection lasted long enough to need a second path"}
}
