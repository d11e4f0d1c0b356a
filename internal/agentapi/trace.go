// SPDX-License-Identifier: Apache-2.0

package agentapi

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"braid.dev/braid/api/v1alpha1"
)

// PacketTCP is a SYN without MPTCP, beside the packets that rules select.
const PacketTCP v1alpha1.PacketType = "TCP"

// TracePackets lists the types of packets that braid-trace makes.
func TracePackets() []v1alpha1.PacketType {
	return []v1alpha1.PacketType{
		PacketTCP, v1alpha1.PacketMPCapable, v1alpha1.PacketMPJoin, v1alpha1.PacketPureACK, v1alpha1.PacketData,
		v1alpha1.PacketDSS, v1alpha1.PacketAddAddr, v1alpha1.PacketMPPrio, v1alpha1.PacketReset, v1alpha1.PacketFIN,
	}
}

// TraceFlags are the flags of braid-trace that say which packets are replayed.
// `kubectl braid trace` has the same ones, and hands on those that are given.
type TraceFlags struct {
	Direction string
	Type      string
	Token     string
	// Sequence and Acknowledgement are TCP's numbers.
	Sequence, Acknowledgement uint32
	// Bytes of payload.
	Bytes int
	// Path by which packets for the pod come in.
	Path string
	// Number of the one packet of a capture, 0 for all; Limit bounds those.
	Number, Limit int
}

// Add adds the flags to a command's.
func (t *TraceFlags) Add(flags *pflag.FlagSet) { flags.AddFlagSet(t.set()) }

func (t *TraceFlags) set() *pflag.FlagSet {
	types := strings.Trim(strings.ReplaceAll(fmt.Sprint(TracePackets()), " ", ", "), "[]")
	flags := pflag.NewFlagSet("trace", pflag.ContinueOnError)
	flags.StringVar(&t.Direction, "direction", string(v1alpha1.DirectionFromEndpoint), "FromEndpoint for what the pod sends, ToEndpoint for what it receives")
	flags.StringVar(&t.Type, "type", string(v1alpha1.PacketMPCapable), "type of the packet: "+types)
	flags.StringVar(&t.Token, "token", "", "token of the connection that MPJoin joins, the responder's, such as 0x1a2b3c4d")
	flags.Uint32Var(&t.Sequence, "sequence", 1000, "TCP sequence number")
	flags.Uint32Var(&t.Acknowledgement, "acknowledgement", 1000, "TCP acknowledgement number")
	flags.IntVar(&t.Bytes, "bytes", 1000, "bytes of payload, for Data and DSS")
	flags.StringVar(&t.Path, "path", "", "path by which packets for the pod come in (default: that of the route to their sender)")
	flags.IntVar(&t.Number, "packet", 0, "replay this packet of the file alone")
	flags.IntVar(&t.Limit, "most", 100, "replay so many packets of the file at most")
	return flags
}

// GivenTraceFlags are those of these flags that a command line has, as arguments of
// braid-trace.
func GivenTraceFlags(flags *pflag.FlagSet) (arguments []string) {
	new(TraceFlags).set().VisitAll(func(own *pflag.Flag) {
		if flag := flags.Lookup(own.Name); flag != nil && flag.Changed {
			arguments = append(arguments, "--"+flag.Name+"="+flag.Value.String())
		}
	})
	return arguments
}
