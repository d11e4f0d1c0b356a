// SPDX-License-Identifier: Apache-2.0

package events

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/agentapi"
)

// numbers are names that are the numbers themselves.
type numbers struct{}

func (numbers) Endpoint(id uint32) string { return fmt.Sprintf("team/pod-%d", id) }
func (numbers) Path(slot uint8) string {
	if slot > 7 {
		return ""
	}
	return fmt.Sprintf("path-%d", slot)
}
func (numbers) Rule(endpoint uint32, rule uint8) (policy, name string) {
	return fmt.Sprintf("MPTCPPolicy/team/%d", endpoint), fmt.Sprintf("rule-%d", rule)
}

func words(text string) (words [4]uint32) {
	address := netip.MustParseAddr(text).As16()
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(address[i*4:])
	}
	return words
}

func port(number uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, number))
}

func monotonic(t *testing.T) uint64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return uint64(now.Nano())
}

func sample(kind uint32) record {
	r := record{Time: 1e9, Token: 0xaabbccdd, InitiatorToken: 0x11, Type: kind, Path: 2, Rule: 3, Sent: [2]uint64{100, 200}}
	r.Key.Endpoint, r.Key.LocalPort, r.Key.RemotePort = 7, port(43210), port(80)
	r.Key.Local.Word, r.Key.Remote.Word = words("::ffff:10.0.0.1"), words("fd00::2")
	return r
}

func encode(t testing.TB, r record) []byte {
	t.Helper()
	var buffer bytes.Buffer
	if err := binary.Write(&buffer, binary.NativeEndian, r); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

func TestAnEventIsReadAsTheProgramsWriteIt(t *testing.T) {
	for number, kind := range map[uint32]agentapi.EventType{1: agentapi.EventConnection, 2: agentapi.EventSubflow, 3: agentapi.EventSubflowEnd} {
		event, ok := parse(encode(t, sample(number)), numbers{})
		event.Time = time.Time{}
		want := agentapi.Event{
			Type: kind, Endpoint: "team/pod-7", Token: 0xaabbccdd, InitiatorToken: 0x11, Path: "path-2",
			Local: netip.MustParseAddrPort("10.0.0.1:43210"), Remote: netip.MustParseAddrPort("[fd00::2]:80"),
			Policy: "MPTCPPolicy/team/7", Rule: "rule-3", SentBytes: 100, ReceivedBytes: 200,
		}
		if !ok || event != want {
			t.Errorf("it was read as %+v, want %+v", event, want)
		}
	}
}

func TestEventsThatAreNotUnderstoodAreLeftOut(t *testing.T) {
	whole := encode(t, sample(2))
	tests := map[string][]byte{
		"nothing": nil, "an event cut short": whole[:len(whole)-1], "an event of a newer kind": encode(t, sample(99)),
	}
	for name, data := range tests {
		if event, ok := parse(data, numbers{}); ok {
			t.Errorf("%s is read as %+v", name, event)
		}
	}
	if _, ok := parse(append(whole, 0, 0, 0, 0), numbers{}); !ok {
		t.Error("an event to which a newer version added something is not read")
	}
}

func TestTheTimeIsThatOfTheWallClock(t *testing.T) {
	const ago = time.Hour
	got, want := wallClock(monotonic(t)-uint64(ago)), time.Now().Add(-ago)
	if off := want.Sub(got).Abs(); off > time.Minute {
		t.Errorf("an hour ago is %s, which is off by %s", got, off)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(encode(f, sample(1)))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, data []byte) {
		if event, ok := parse(data, numbers{}); ok && (!event.Local.IsValid() || event.Type == "") {
			t.Errorf("%+v", event)
		}
	})
}

// ringBuffer is one into which a program of the kernel writes the event each time
// that it is run.
func ringBuffer(t *testing.T, r record) (buffer *ebpf.Map, write func()) {
	t.Helper()
	buffer, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: 4096})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { buffer.Close() })
	data := encode(t, r)
	var code asm.Instructions
	for offset := 0; offset < len(data); offset += 8 {
		code = append(code,
			asm.LoadImm(asm.R0, int64(binary.NativeEndian.Uint64(data[offset:])), asm.DWord),
			asm.StoreMem(asm.RFP, int16(offset-len(data)), asm.R0, asm.DWord))
	}
	code = append(code,
		asm.LoadMapPtr(asm.R1, buffer.FD()), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, int32(-len(data))),
		asm.Mov.Imm(asm.R3, int32(len(data))), asm.Mov.Imm(asm.R4, 0), asm.FnRingbufOutput.Call(),
		asm.Mov.Imm(asm.R0, 0), asm.Return())
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: code, License: "MIT"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return buffer, func() {
		if _, err := program.Run(&ebpf.RunOptions{Data: make([]byte, 64)}); err != nil {
			t.Fatal(err)
		}
	}
}

// receive runs a receiver until the returned function is called.
func receive(t *testing.T, buffer *ebpf.Map, log *Log, logger logr.Logger) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Receive(ctx, buffer, numbers{}, log, logger) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the receiver ended: %v", err)
		}
	}
}

func TestEventsOfTheKernelReachTheLog(t *testing.T) {
	buffer, write := ringBuffer(t, sample(2))
	log := NewLog(0)
	stop := receive(t, buffer, log, logr.Discard())
	defer stop()
	for count := 1; count <= 3; count++ {
		changed := log.Read(0).Changed
		write()
		select {
		case <-changed:
		case <-time.After(20 * time.Second):
			t.Fatal("an event did not arrive")
		}
		if read := log.Read(0).Events; len(read) != count || read[count-1].Token != 0xaabbccdd {
			t.Errorf("the events are %+v", read)
		}
	}
}

func TestEventsAreLoggedOnlyOnRequest(t *testing.T) {
	for verbosity, want := range map[int]int{0: 0, 1: 1} {
		buffer, write := ringBuffer(t, sample(2))
		lines := make(chan string, 10)
		logger := funcr.New(func(_, line string) { lines <- line }, funcr.Options{Verbosity: verbosity})
		log := NewLog(0)
		changed := log.Read(0).Changed
		stop := receive(t, buffer, log, logger)
		write()
		<-changed
		stop()
		if len(lines) != want {
			t.Errorf("at verbosity %d there are %d lines", verbosity, len(lines))
		}
		if want > 0 && !strings.Contains(<-lines, "team/pod-7") {
			t.Error("the line does not name the endpoint")
		}
	}
}
