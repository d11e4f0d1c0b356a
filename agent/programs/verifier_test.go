// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"braid.dev/braid/bpf/program/programtest"
)

func TestTheVerifiersReason(t *testing.T) {
	for name, test := range map[string]struct {
		log  []string
		want string
	}{
		"a bad read": {
			log: []string{
				"func#0 @0",
				"; const __u8 *byte = (void *)(unsigned long)skb->data; @ program.c:11",
				"0: (61) r1 = *(u32 *)(r6 +76)         ; R1_w=pkt(r=0) R6=ctx()",
				"; return byte[9]; @ program.c:13",
				"1: (71) r0 = *(u8 *)(r1 +9)",
				"invalid access to packet, off=9 size=1, R1(id=0,off=9,r=0)",
				"R1 offset is outside of the packet",
				"processed 2 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0",
			},
			want: `invalid access to packet, off=9 size=1, R1(id=0,off=9,r=0); R1 offset is outside of the packet ` +
				`(at "return byte[9]; @ program.c:13": 1: (71) r0 = *(u8 *)(r1 +9))`,
		},
		"a pointer that may be nothing, without lines of source": {
			log: []string{
				"5: (85) call bpf_map_lookup_elem#1", "6: (79) r1 = *(u64 *)(r0 +0)",
				"R0 invalid mem access 'map_value_or_null'", "processed 6 insns (limit 1000000)",
			},
			want: "R0 invalid mem access 'map_value_or_null' (at 6: (79) r1 = *(u64 *)(r0 +0))",
		},
		"a statement alone": {log: []string{"BPF program is too large. Processed 1000001 insn"}, want: "BPF program is too large. Processed 1000001 insn"},
		"no log":            {want: "invalid argument"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := verifierReason(test.log, errors.New("invalid argument")); got != test.want {
				t.Errorf("the reason is\n%s, wanted\n%s", got, test.want)
			}
		})
	}
}

func TestALongReasonIsCut(t *testing.T) {
	for _, length := range []int{reasonLength, reasonLength + 1, 5000} {
		text := truncate(strings.Repeat("é", length/2) + strings.Repeat("x", length%2))
		if len(text) > reasonLength || !strings.HasPrefix(text, "ééé") || strings.ContainsRune(text, '\uFFFD') {
			t.Errorf("of %d bytes: %q", length, text)
		}
	}
}

func FuzzPinNames(f *testing.F) {
	f.Add("slot-3-0123456789abcdef01234567-0123456789abcdef01234567-")
	f.Add("congestion-0-0123456789abcdef01234567-0123456789abcdef01234567-braid_aimd")
	f.Fuzz(func(t *testing.T, name string) {
		found, err := parsePin(name)
		if err != nil {
			return
		}
		again, err := parsePin(found.pinName())
		if err != nil || *again != *found {
			t.Errorf("%q is read as %+v, and that as %+v: %v", name, found, again, err)
		}
	})
}

// What is no proper object is refused without harm; nothing is loaded here.
func FuzzObjects(f *testing.F) {
	for _, source := range []string{"examples/stamp.bpf.c", "examples/histogram.bpf.c", "examples/hold_back.bpf.c", "examples/aimd.bpf.c", "testdata/two.bpf.c"} {
		f.Add(programtest.Compile(f, source))
	}
	f.Fuzz(func(_ *testing.T, source []byte) {
		spec, err := readObject(source)
		if err != nil {
			return
		}
		_ = judgeContext(spec)
		_ = judgeMaps(spec, contextMap)
		if operations, err := chooseOperations(spec, ""); err == nil {
			_, _ = algorithmOf(operations)
		}
		if program, err := onlyProgram(spec, "", ebpf.SchedCLS); err == nil {
			_ = judgeFunctions(program, actionFunctions)
		}
	})
}
