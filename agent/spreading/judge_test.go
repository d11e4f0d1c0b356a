// SPDX-License-Identifier: Apache-2.0

package spreading

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

// ours is a connection to a peer's node with one lasting subflow on a path.
func ours(path string) connection {
	return connection{place: behindPeer, paths: []string{path}, subflows: 1, bytes: 1000, ever: 2 * lasting, known: true, begunHere: true, announced: true, common: 2}
}

func (c connection) with(change func(*connection)) connection {
	change(&c)
	return c
}

func TestTheReasonIsWhatMostBytesHaveInCommon(t *testing.T) {
	both := []string{"blue", "green"}
	several := ours("blue").with(func(c *connection) { c.paths, c.subflows = both, 2 })
	plain := ours("").with(func(c *connection) { c.speaks, c.paths = speaksTCP, nil })
	tunnelled := ours("").with(func(c *connection) { c.place, c.tunnel, c.paths = behindTunnel, "flannel.1", nil })
	readable := tunnelled.with(func(c *connection) { c.kind = paths.TunnelVXLAN })
	outside := ours("").with(func(c *connection) { c.place, c.paths = elsewhere, nil })
	young := ours("blue").with(func(c *connection) { c.ever = 1000 })
	tests := map[string]struct {
		observation
		reason, says string
	}{
		"a connection on two paths":                       {observation{open: both, connections: []connection{several}}, v1alpha1.ReasonSpread, ""},
		"two connections on a path each":                  {observation{open: both, connections: []connection{ours("blue"), ours("green")}}, v1alpha1.ReasonSpread, ""},
		"young ones of which earlier ones were elsewhere": {observation{open: both, connections: []connection{young}, used: map[string]bool{"blue": true, "green": true}}, v1alpha1.ReasonSpread, ""},
		"short ones that have ended on two paths":         {observation{open: both, used: map[string]bool{"blue": true, "green": true}}, v1alpha1.ReasonSpread, ""},
		"nothing":            {observation{open: both}, v1alpha1.ReasonNothingSent, "nothing was sent"},
		"a young connection": {observation{open: both, connections: []connection{young}, used: map[string]bool{"blue": true}}, v1alpha1.ReasonLittleSent, "no connection lasted"},
		"a connection that has just begun, with many bytes": {observation{open: both, connections: []connection{ours("blue").with(func(c *connection) { c.known = false })}}, v1alpha1.ReasonLittleSent, ""},
		"one that the policy lets wait":                     {observation{open: both, openAfterBytes: 2 * lasting, connections: []connection{ours("blue")}}, v1alpha1.ReasonLittleSent, ""},
		"one that is younger than the policy wants":         {observation{open: both, openAfterTime: time.Hour, connections: []connection{ours("blue").with(func(c *connection) { c.age = time.Minute })}}, v1alpha1.ReasonLittleSent, ""},
		"one that is old enough":                            {observation{open: both, openAfterBytes: 1 << 40, openAfterTime: time.Hour, connections: []connection{ours("blue").with(func(c *connection) { c.age = 3 * time.Hour })}}, v1alpha1.ReasonOnePathUsed, ""},
		"short ones that have ended on one path":            {observation{open: both, used: map[string]bool{"blue": true}}, v1alpha1.ReasonLittleSent, "no connection lasted"},
		"plain sockets":                                     {observation{open: both, connections: []connection{plain}}, v1alpha1.ReasonPlainTCP, "are plain TCP"},
		"plain sockets of connections that have ended":      {observation{open: both, over: []connection{plain}}, v1alpha1.ReasonPlainTCP, "are plain TCP"},
		"what has ended tells nothing beside flows":         {observation{open: both, over: []connection{plain}, used: map[string]bool{"blue": true}}, v1alpha1.ReasonLittleSent, ""},
		"a peer that does not speak MPTCP":                  {observation{open: both, connections: []connection{plain.with(func(c *connection) { c.speaks = fellBack })}}, v1alpha1.ReasonPlainTCP, "what answers"},
		"plain sockets that should be upgraded":             {observation{open: both, upgradeFails: true, connections: []connection{plain}}, v1alpha1.ReasonUpgradeUnsupported, "cannot upgrade"},
		"MPTCP sockets where others cannot be upgraded":     {observation{open: both, upgradeFails: true, connections: []connection{several}}, v1alpha1.ReasonSpread, ""},
		"an overlay":                                          {observation{open: both, connections: []connection{tunnelled}}, v1alpha1.ReasonOverlayNotSteered, "flannel.1"},
		"plain sockets in an overlay":                         {observation{open: both, connections: []connection{tunnelled.with(func(c *connection) { c.speaks = speaksTCP })}}, v1alpha1.ReasonOverlayNotSteered, ""},
		"an overlay that encrypts":                            {observation{open: both, connections: []connection{tunnelled.with(func(c *connection) { c.kind = paths.TunnelEncrypted })}}, v1alpha1.ReasonEncryptedOverlay, "flannel.1"},
		"an overlay to strangers":                             {observation{open: both, connections: []connection{readable}}, v1alpha1.ReasonOverlayNotSteered, "flannel.1 (VXLAN)"},
		"a young connection there":                            {observation{open: both, connections: []connection{readable.with(func(c *connection) { c.ever = 1000 })}}, v1alpha1.ReasonLittleSent, ""},
		"plain sockets in an overlay that is steered":         {observation{open: both, connections: []connection{readable.with(func(c *connection) { c.speaks = speaksTCP })}}, v1alpha1.ReasonPlainTCP, ""},
		"a peer outside the cluster":                          {observation{open: both, connections: []connection{outside}}, v1alpha1.ReasonPeerNotSelected, "no node that an agent runs on"},
		"a peer that announces nothing":                       {observation{open: both, byKernel: true, connections: []connection{ours("blue").with(func(c *connection) { c.announced = false })}}, v1alpha1.ReasonPeerNotSelected, "announce no address"},
		"a peer that opens no further subflow":                {observation{open: both, connections: []connection{ours("blue").with(func(c *connection) { c.begunHere = false })}}, v1alpha1.ReasonPeerNotSelected, "open no further"},
		"further subflows that are refused":                   {observation{open: both, byKernel: true, connections: []connection{ours("blue")}}, v1alpha1.ReasonOnePathUsed, "not established"},
		"a connection that waits while the paths are full":    {observation{open: both, crowded: true, connections: []connection{ours("blue")}}, v1alpha1.ReasonLittleSent, "fill the node"},
		"subflows that are all on one path":                   {observation{open: both, connections: []connection{ours("blue").with(func(c *connection) { c.subflows = 3 })}}, v1alpha1.ReasonOnePathUsed, "all on one path"},
		"one path that is open":                               {observation{open: both[:1], shut: []string{"path green: no NIC"}, connections: []connection{ours("blue")}}, v1alpha1.ReasonNoSecondPath, "path green: no NIC"},
		"one path that is open, and nothing else known":       {observation{open: both[:1], used: map[string]bool{"blue": true}}, v1alpha1.ReasonNoSecondPath, "no second path is for it"},
		"no path at all":                                      {observation{connections: []connection{outside.with(func(c *connection) { c.place = behindPeer })}}, v1alpha1.ReasonNoSecondPath, ""},
		"a peer with one path":                                {observation{open: both, connections: []connection{ours("blue").with(func(c *connection) { c.common = 1 })}}, v1alpha1.ReasonNoSecondPath, "on one path alone"},
		"a policy that keeps connections on one path":         {observation{open: both, samePath: true, connections: []connection{ours("blue")}}, v1alpha1.ReasonNoSecondPath, "NDiffPorts"},
		"more bytes of plain TCP than of a spread connection": {observation{open: both, connections: []connection{several, plain.with(func(c *connection) { c.bytes = 1001 })}}, v1alpha1.ReasonPlainTCP, ""},
		"nobody who answers":                                  {observation{open: both, used: map[string]bool{"blue": true}, over: []connection{plain}, unanswered: []lost{{}}}, v1alpha1.ReasonNotAnswered, "nothing comes back"},
		"no route any more":                                   {observation{open: both, unanswered: []lost{{}, {noRoute: true}, {noRoute: true}}}, v1alpha1.ReasonNotAnswered, "no route"},
		"nobody who answers in an overlay":                    {observation{open: both, unanswered: []lost{{tunnel: "flannel.1", kind: paths.TunnelVXLAN}}}, v1alpha1.ReasonNotAnswered, "flannel.1 (VXLAN)"},
		"one that moves beside others that nobody answers":    {observation{open: both, connections: []connection{several}, unanswered: []lost{{}}}, v1alpha1.ReasonSpread, ""},
		"as many, of more connections":                        {observation{open: both, connections: []connection{plain, several.with(func(c *connection) { c.bytes = 500 }), several.with(func(c *connection) { c.bytes = 500 })}}, v1alpha1.ReasonSpread, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			v := judge(&test.observation)
			require.Equal(t, test.reason, v.reason)
			require.Contains(t, v.message, test.says)
			state := v1alpha1.SpreadingNotSpread
			switch test.reason {
			case v1alpha1.ReasonSpread:
				state = v1alpha1.SpreadingSpread
			case v1alpha1.ReasonNothingSent, v1alpha1.ReasonLittleSent:
				state = v1alpha1.SpreadingUnknown
			}
			require.Equal(t, state, v.state)
			require.False(t, strings.ContainsAny(strings.ReplaceAll(v.message, "flannel.1", ""), "0123456789"), "a number changes all the time: %s", v.message)
		})
	}
}

func TestAVerdictIsToldOnceItLasts(t *testing.T) {
	spread, plain := spread(), not(v1alpha1.ReasonPlainTCP, "")
	nothing, little := verdict{v1alpha1.SpreadingUnknown, v1alpha1.ReasonNothingSent, ""}, little()
	repeat := func(v verdict, times int) (all []verdict) {
		for range times {
			all = append(all, v)
		}
		return all
	}
	tests := map[string]struct {
		told    verdict
		judged  []verdict
		want    verdict
		changes int
	}{
		"the first is told at once":                        {verdict{}, []verdict{nothing}, nothing, 1},
		"what is known is told in the place of nothing":    {nothing, []verdict{plain}, plain, 1},
		"one interval changes nothing that is known":       {spread, []verdict{plain, spread, plain, spread}, spread, 0},
		"two that agree do":                                {spread, []verdict{plain, plain, plain}, plain, 1},
		"silence changes nothing for a while":              {spread, repeat(nothing, remembered-1), spread, 0},
		"traffic between makes silence begin anew":         {spread, append(repeat(nothing, remembered-1), spread, nothing), spread, 0},
		"silence is told in the end":                       {spread, repeat(nothing, remembered+5), nothing, 1},
		"also where little was sent now and then":          {spread, append(repeat(little, remembered-1), nothing), nothing, 1},
		"the same again is no change":                      {plain, []verdict{plain, plain, plain}, plain, 0},
		"that nobody answers is told at once":              {spread, []verdict{lost{}.verdict()}, lost{}.verdict(), 1},
		"what an earlier agent told stays until it is not": {plain, []verdict{nothing, plain}, plain, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s, changes := settled{told: test.told}, 0
			for _, v := range test.judged {
				if s.take(v) {
					changes++
				}
			}
			require.Equal(t, test.want, s.told)
			require.Equal(t, test.changes, changes)
		})
	}
}
