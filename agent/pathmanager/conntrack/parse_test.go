// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// answer is like the kernel's.
func answer(t testing.TB, from, to netip.AddrPort) []byte {
	t.Helper()
	data, err := encode(attributeReply, from, to)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestWhoAnswersIsRead(t *testing.T) {
	for _, want := range []netip.AddrPort{netip.MustParseAddrPort("10.0.0.9:8080"), netip.MustParseAddrPort("[fd00::9]:8080")} {
		initiator := netip.AddrPortFrom(want.Addr().Next(), 40000)
		got, ok := parseAnswering(answer(t, want, initiator))
		if !ok || got.Remote != want || got.Local != initiator {
			t.Errorf("read %s (%t), want %s and %s", got, ok, want, initiator)
		}
	}
}

func TestAnAnswerWithoutAReplyTellsNothing(t *testing.T) {
	at := netip.MustParseAddrPort("10.0.0.9:8080")
	data, err := encode(attributeOriginal, at, at)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"an original tuple alone": data,
		"a header alone":          {unix.AF_INET, 0, 0, 0},
		"nothing":                 nil,
		"one that is cut off":     answer(t, at, at)[:20],
	} {
		if got, ok := parseAnswering(data); ok {
			t.Errorf("%s was read as %s", name, got)
		}
	}
}

func FuzzAnswers(f *testing.F) {
	f.Add(answer(f, netip.MustParseAddrPort("10.0.0.9:8080"), netip.MustParseAddrPort("10.0.0.1:40000")))
	f.Add(answer(f, netip.MustParseAddrPort("[fd00::9]:8080"), netip.MustParseAddrPort("[fd00::1]:40000")))
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, ok := parseAnswering(data); ok && (!got.Remote.IsValid() || got.Remote.Port() == 0 || !got.Local.IsValid() || got.Local.Port() == 0) {
			t.Errorf("read %s", got)
		}
	})
}
