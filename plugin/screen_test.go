// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// threeSubflows are of two nodes, of which a third cannot be read.
func threeSubflows() *Top {
	return &Top{
		Total: 5,
		Subflows: []Subflow{
			{Node: "node1", Pod: "shop/web", Peer: "shop/store", Local: "10.0.1.1:40001", Remote: "10.0.2.1:5001", Path: "blue", SentBitsPerSecond: 95_300_000, ReceivedBitsPerSecond: 1200, RTTMicroseconds: 13800},
			{Node: "node1", Pod: "shop/web", Local: "10.0.1.1:40002", Remote: "192.0.2.7:443", Path: "grün", Backup: true},
			{Node: "node2", Pod: "team/client", Local: "[fd00::1]:1", Remote: "[fd00::9]:40000", SentBitsPerSecond: 2_000_000_000, RTTMicroseconds: 280},
		},
		Problems: []Problem{{"node node3", "NotRead", "asking the agent on node3:\nit is ill"}},
	}
}

// drawn is a screen without what terminals understand: the line of the titles has a >
// in front.
func drawn(v *screen, width, height int) string {
	text := strings.NewReplacer(home, "", "\r\n", "\n", clearLine, "|", clearBelow, "\n", reverseOn, ">", reverseOff, "").Replace(v.draw(width, height))
	return fmt.Sprintf("%d columns, %d lines\n%s", width, height, text)
}

func TestAScreenShowsWhatFits(t *testing.T) {
	filtered := screen{read: true, filter: "SHOP", sort: 3, reverse: true}
	var all strings.Builder
	for _, test := range []struct {
		what          string
		screen        screen
		width, height int
	}{
		{"before a node has said anything", screen{}, 80, 5},
		{"everything", screen{read: true, sort: 3}, 120, 10},
		{"the left part of each line", screen{read: true, sort: 3}, 40, 8},
		{"the first of what is sorted", screen{read: true, sort: 3}, 100, 5},
		{"the last, however far one scrolled", screen{read: true, sort: 3, first: 99}, 100, 5},
		{"what a filter lets through, the least first", filtered, 100, 8},
		{"a filter while it is typed", screen{read: true, filter: "gr", typing: true}, 100, 6},
		{"a mistake above the nodes that cannot be read", screen{read: true, note: "reading the plans: it is gone"}, 100, 8},
		{"no more lines than the terminal has", screen{read: true}, 100, 3},
	} {
		test.screen.top = threeSubflows()
		fmt.Fprintf(&all, "%s: %s\n", test.what, drawn(&test.screen, test.width, test.height))
	}
	Golden(t, "screens", all.String())
}

func TestKeysAreToldApart(t *testing.T) {
	for typed, want := range map[string][]string{
		"":                         nil,
		"qr":                       {"q", "r"},
		"ü/":                       {"ü", "/"},
		"\x1b[A\x1bOB\x1b[C\x1bOD": {keyUp, keyDown, keyRight, keyLeft},
		"\x1b[5~\x1b[6~":           {keyPageUp, keyPageDown},
		"a\r\x7f\b\x03":            {"a", keyEnter, keyDelete, keyDelete, keyInterrupt},
		"\x1b":                     {keyEscape},
	} {
		require.Equal(t, want, keysIn(typed), "%q", typed)
	}
}

func TestKeysChangeWhatIsShown(t *testing.T) {
	for name, test := range map[string]struct {
		before screen
		typed  string
		want   screen
	}{
		"a letter sorts by its column from the top":  {screen{sort: 3, reverse: true, first: 7}, "n", screen{sort: 8}},
		"a letter of no column does nothing":         {screen{sort: 3, reverse: true, first: 7}, "x", screen{sort: 3, reverse: true, first: 7}},
		"left of the first column is the last":       {screen{}, "\x1b[D", screen{sort: 8}},
		"right of the last column is the first":      {screen{sort: 8}, "\x1b[C", screen{}},
		"r reverses, and again puts it right":        {screen{}, "rrr", screen{reverse: true}},
		"pages are as long as what is shown":         {screen{shown: 10, first: 5}, "\x1b[6~\x1b[6~\x1b[5~\x1b[B", screen{shown: 10, first: 16}},
		"a filter takes letters that are keys else":  {screen{first: 4}, "/qrü", screen{typing: true, filter: "qrü"}},
		"delete takes the last letter, however wide": {screen{typing: true, filter: "grü"}, "\x7f", screen{typing: true, filter: "gr"}},
		"delete of nothing does nothing":             {screen{typing: true}, "\x7f\x7f", screen{typing: true}},
		"arrows are no letters of a filter":          {screen{typing: true, filter: "a"}, "\x1b[A\x1b[C", screen{typing: true, filter: "a"}},
		"enter keeps the filter":                     {screen{typing: true, filter: "a"}, "\rr", screen{filter: "a", reverse: true}},
		"escape drops the filter while it is typed":  {screen{typing: true, filter: "a"}, "\x1b", screen{}},
		"escape drops the filter afterwards":         {screen{filter: "a"}, "\x1b", screen{}},
		"q leaves":                                   {screen{}, "q", screen{left: true}},
		"an interrupt leaves even out of a filter":   {screen{typing: true}, "\x03", screen{typing: true, left: true}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, key := range keysIn(test.typed) {
				test.before.press(key)
			}
			require.Equal(t, test.want, test.before)
		})
	}
}

func TestAFooterNamesThreeNodesAndCountsTheOthers(t *testing.T) {
	v := screen{top: &Top{}}
	for i := range 5 {
		v.top.Problems = append(v.top.Problems, Problem{fmt.Sprintf("node n%d", i), "NotRead", "it is\nill"})
	}
	footer := v.footer()
	require.Equal(t, []string{"node n0: it is ill", "node n1: it is ill", "node n2: it is ill", "and 2 more"}, footer[:4])
	require.Len(t, footer, 5)
	require.Contains(t, footer[4], "q quit")
}

func TestRatesHaveThreeDigitsOrSo(t *testing.T) {
	for bits, want := range map[uint64]string{
		0: "-", 1: "1 bit/s", 999: "999 bit/s", 1000: "1.0 kbit/s", 99_940: "99.9 kbit/s", 99_960: "100 kbit/s", 999_400: "999 kbit/s",
		999_600: "1.0 Mbit/s", 12_345_678: "12.3 Mbit/s", 100_000_000_000: "100 Gbit/s", 4_000_000_000_000: "4.0 Tbit/s", 5_000_000_000_000_000: "5000 Tbit/s",
	} {
		require.Equal(t, want, rateText(bits), bits)
	}
}

func TestEachColumnSortsTheMostOrTheFirstNameUp(t *testing.T) {
	for column, want := range map[string]string{ // the local ports
		"pod": "40001 40002 1", "peer": "40002 1 40001", "path": "1 40001 40002", "rate": "1 40001 40002", "sent": "1 40001 40002",
		"received": "40001 40002 1", "rtt": "40001 1 40002", "backup": "40002 40001 1", "node": "40001 40002 1",
	} {
		by, known := columnNamed(column)
		require.True(t, known)
		subflows := threeSubflows().Subflows
		ports := func() string {
			var ports []string
			for i := range subflows {
				ports = append(ports, afterLast(subflows[i].Local, ":"))
			}
			return strings.Join(ports, " ")
		}
		sortSubflows(subflows, by, false)
		require.Equal(t, want, ports(), column)
	}
}
