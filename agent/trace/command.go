// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/spf13/cobra"

	"braid.dev/braid/agent/inspect"
	"braid.dev/braid/agent/pins"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/output"
)

// tracing is what is to be replayed.
type tracing struct {
	format  output.Format
	of      Options
	flags   agentapi.TraceFlags
	address string
	to      string
	capture string
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
	flags.StringVar(&t.capture, "pcap", "", "file of packets to replay, one after the other, as tcpdump writes it; - for the standard input")
	t.flags.Add(flags)
	flags.VarP(&t.format, "output", "o", "print for programs instead of people")
	return command
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
	t.of.Address, t.of.Path = local.Addr(), t.flags.Path
	if t.capture != "" {
		return t.captured(input)
	}
	packet, err := t.packet(local)
	if err != nil {
		return nil, err
	}
	data, err := packet.Frame()
	return []Frame{{Number: 1, Data: data}}, err
}

// packet is the one that the flags describe.
func (t *tracing) packet(local netip.AddrPort) (*Packet, error) {
	other, err := netip.ParseAddrPort(t.to)
	if err != nil {
		return nil, fmt.Errorf("--to or --pcap is needed: --to: %w", err)
	}
	packet := &Packet{
		From: local, To: other, Type: v1alpha1.PacketType(t.flags.Type), Bytes: t.flags.Bytes,
		Sequence: t.flags.Sequence, Acknowledgement: t.flags.Acknowledgement,
	}
	switch v1alpha1.Direction(t.flags.Direction) {
	case v1alpha1.DirectionFromEndpoint:
	case v1alpha1.DirectionToEndpoint:
		packet.From, packet.To = other, local
	default:
		return nil, fmt.Errorf("--direction: must be %s or %s", v1alpha1.DirectionFromEndpoint, v1alpha1.DirectionToEndpoint)
	}
	if err := packet.Token.UnmarshalText([]byte(t.flags.Token)); err != nil {
		return nil, fmt.Errorf("--token: must be a token such as 0x1a2b3c4d: %w", err)
	}
	return packet, nil
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
	frames, err := ReadCapture(input, max(t.flags.Limit, t.flags.Number))
	if err != nil || t.flags.Number == 0 {
		return frames, err
	}
	if t.flags.Number > len(frames) {
		return nil, fmt.Errorf("--packet %d: the capture has %d", t.flags.Number, len(frames))
	}
	return frames[t.flags.Number-1 : t.flags.Number], nil
}
