// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
)

// contender is a program and the packet that it runs on.
type contender struct {
	name    string
	program *ebpf.Program
	frame   []byte
}

// race measures programs by BPF_PROG_TEST_RUN in turns, so that what disturbs the
// machine disturbs all of them.
type race struct {
	contenders []contender
	trials     map[string][]float64 // ns a packet
}

const (
	raceTrials = 15
	emptyName  = "empty"
)

func (r *race) add(c contender) { r.contenders = append(r.contenders, c) }

// run measures everything raceTrials times, after a turn that is not counted.
func (r *race) run() error {
	for trial := range raceTrials + 1 {
		for _, c := range r.contenders {
			_, each, err := c.program.Benchmark(c.frame, repeats, nil)
			if err != nil {
				return fmt.Errorf("running %s: %w", c.name, err)
			}
			if trial > 0 {
				r.trials[c.name] = append(r.trials[c.name], float64(each.Nanoseconds()))
			}
		}
	}
	return nil
}

// above is what a contender costs above the empty program, trial by trial.
func (r *race) above(name string) (costs []float64) {
	for trial, cost := range r.trials[name] {
		costs = append(costs, cost-r.trials[emptyName][trial])
	}
	return costs
}

// figures notes a contender's time, and what it costs above an empty program.
func (r *race) figures(b *bench, name, figure string) {
	b.add(figure+"ns", "ns/packet", r.trials[name])
	if name != emptyName {
		b.add(figure+"above_empty_ns", "ns/packet", r.above(name))
	}
}

// segmentOf is an IPv4 segment of an established MPTCP subflow, as Linux sends it:
// timestamps, a DSS option with a data acknowledgement and a mapping, and payload. The
// checksums are right.
func segmentOf(from, to netip.AddrPort) []byte {
	options := []byte{1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 8, 30, 26, 2 << 4, 0x0f}
	options = append(options, make([]byte, 22)...)
	options = append(options, 1, 1)
	tcp := binary.BigEndian.AppendUint16(nil, from.Port())
	tcp = binary.BigEndian.AppendUint16(tcp, to.Port())
	tcp = append(tcp, 0, 1, 0, 0, 0, 1, 0, 0, byte(5+len(options)/4)<<4, 0x10, 0xff, 0xff, 0, 0, 0, 0)
	tcp = append(tcp, options...)
	tcp = append(tcp, make([]byte, chainPayload)...)
	source, destination := from.Addr().As4(), to.Addr().As4()
	ip := []byte{0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0}
	binary.BigEndian.PutUint16(ip[2:], uint16(20+len(tcp)))
	ip = append(append(ip, source[:]...), destination[:]...)
	binary.BigEndian.PutUint16(ip[10:], internetChecksum(ip))
	pseudo := append(slices.Clone(ip[12:20]), 0, 6, byte(len(tcp)>>8), byte(len(tcp)))
	binary.BigEndian.PutUint16(tcp[16:], internetChecksum(append(pseudo, tcp...)))
	ethernet := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00}
	return slices.Concat(ethernet, ip, tcp)
}

func internetChecksum(data []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	if len(data)%2 == 1 {
		sum += uint32(data[len(data)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
