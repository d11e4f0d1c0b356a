// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"braid.dev/braid/agent/inspect"
	"braid.dev/braid/agent/pins"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/output"
)

// tracing is what is to be replayed.
type tracing struct {
	format    output.Format
	of        Options
	packet    Packet
	address   string
	to        string
	direction string
	kind      string
	token     string
	capture   string
	most      int
	number    int
}

// Command replays what its flags say, and prints what became of it.
func Command() *cobra.Command {
	t := &tracing{}
	command := &cobra.Command{
		Use:   "braid-trace --address ADDRESS (--to ADDRESS:PORT | --pcap FILE)",
		Short: "Replays packets of a pod through copies of this node's programs, and says what each did",
		Long: `Replays packets of a pod through copies of the programs that are attached on this
node: the same instructions, which is checked, with copies of the maps that they write.
Nothing is sent, and no counter, flow or record of the node changes.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(command *cobra.Command, _ []string) error { return t.run(command) },
	}
	flags := command.Flags()
	flags.StringVar(&t.of.PinPath, "pin-path", pins.DefaultPath, "directory of the agent's pinned programs and maps")
	flags.StringVar(&t.of.StatePath, "state-path", inspect.DefaultStatePath, "directory of what the agent keeps")
	flags.StringVar(&t.of.Pod, "pod", "", "namespace/name of the pod, for the report")
	flags.StringVar(&t.address, "address", "", "address of the pod, perhaps with :PORT")
	flags.StringVar(&t.to, "to", "", "address and port of the other end")
	flags.StringVar(&t.direction, "direction", string(v1alpha1.DirectionFromEndpoint), "FromEndpoint for what the pod sends, ToEndpoint for what it receives")
	flags.StringVar(&t.kind, "type", string(TypeMPCapable), "of the packet: "+kinds())
	flags.StringVar(&t.token, "token", "", "of the connection that MPJoin joins, the responder's, such as 0x1a2b3c4d")
	flags.Uint32Var(&t.packet.Sequence, "sequence", 1000, "TCP's sequence number")
	flags.Uint32Var(&t.packet.Acknowledgement, "acknowledgement", 1000, "TCP's acknowledgement number")
	flags.IntVar(&t.packet.Bytes, "bytes", 1000, "of payload, for Data and DSS")
	flags.StringVar(&t.of.Path, "path", "", "path by which packets for the pod come in (default: that of the route to their sender)")
	flags.StringVar(&t.capture, "pcap", "", "file of packets to replay, one after the other, as tcpdump writes it; - for the standard input")
	flags.IntVar(&t.number, "packet", 0, "replay this packet of the file alone")
	flags.IntVar(&t.most, "most", 100, "replay so many packets of the file at most")
	flags.VarP(&t.format, "output", "o", "print for programs instead of people")
	return command
}

func kinds() string {
	var names []string
	for _, kind := range Types() {
		names = append(names, string(kind))
	}
	return strings.Join(names, ", ")
}

func (t *tracing) run(command *cobra.Command) error {
	frames, err := t.frames(command.InOrStdin())
	if err != nil {
		return err
	}
	tracer, err := Open(t.of)
	if err != nil {
		return err
	}
	report, err := tracer.Replay(frames)
	if err := errors.Join(err, tracer.Close()); err != nil {
		return err
	}
	return Print(command.OutOrStdout(), t.format, report)
}

// defaultPort is the pod's where none is given.
const defaultPort = 40000

func (t *tracing) frames(input io.Reader) ([]Frame, error) {
	local, err := parseEnd(t.address)
	if err != nil {
		return nil, fmt.Errorf("--address: %w", err)
	}
	t.of.Address = local.Addr()
	if t.capture != "" {
		return t.captured(input)
	}
	other, err := netip.ParseAddrPort(t.to)
	if err != nil {
		return nil, fmt.Errorf("--to or --pcap is needed: --to: %w", err)
	}
	t.packet.From, t.packet.To, t.packet.Type = local, other, Type(t.kind)
	switch v1alpha1.Direction(t.direction) {
	case v1alpha1.DirectionFromEndpoint:
	case v1alpha1.DirectionToEndpoint:
		t.packet.From, t.packet.To = other, local
	default:
		return nil, fmt.Errorf("--direction: must be %s or %s", v1alpha1.DirectionFromEndpoint, v1alpha1.DirectionToEndpoint)
	}
	if t.token != "" {
		if _, err := fmt.Sscanf(t.token, "0x%x", &t.packet.Token); err != nil {
			return nil, fmt.Errorf("--token: %q is no token such as 0x1a2b3c4d", t.token)
		}
	}
	data, err := t.packet.Frame()
	return []Frame{{Number: 1, Data: data}}, err
}

// parseEnd takes an address with or without a port.
func parseEnd(text string) (netip.AddrPort, error) {
	if end, err := netip.ParseAddrPort(text); err == nil {
		return end, nil
	}
	address, err := netip.ParseAddr(text)
	return netip.AddrPortFrom(address, defaultPort), err
}

func (t *tracing) captured(input io.Reader) ([]Frame, error) {
	if t.capture != "-" {
		file, err := os.Open(t.capture)
		if err != nil {
			return nil, fmt.Errorf("opening the capture: %w", err)
		}
		defer file.Close()
		input = file
	}
	frames, err := ReadCapture(input, max(t.most, t.number))
	if err != nil || t.number == 0 {
		return frames, err
	}
	if t.number > len(frames) {
		return nil, fmt.Errorf("--packet %d: the capture has %d", t.number, len(frames))
	}
	return frames[t.number-1 : t.number], nil
}
