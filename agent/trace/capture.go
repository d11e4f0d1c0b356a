// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// source is a capture of either format.
type source interface {
	ReadPacketData() ([]byte, gopacket.CaptureInfo, error)
	LinkType() layers.LinkType
}

// sectionHeader is what a pcapng file begins with.
const sectionHeader = 0x0a0d0d0a

// Frame is one of a capture.
type Frame struct {
	// Number in the capture, from 1.
	Number int
	Data   []byte
	// Problem says why it cannot be replayed.
	Problem string
}

// ReadCapture reads the first packets, at most limit, of a pcap or pcapng file of
// Ethernet, of plain IP, or of "any" interface of Linux.
func ReadCapture(r io.Reader, limit int) ([]Frame, error) {
	reader := bufio.NewReader(r)
	from, err := openCapture(reader)
	if err != nil {
		return nil, fmt.Errorf("reading the capture: %w", err)
	}
	var frames []Frame
	for number := 1; number <= limit; number++ {
		data, info, err := from.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading packet %d of the capture: %w", number, err)
		}
		frame := Frame{Number: number}
		if info.CaptureLength < info.Length {
			frame.Problem = fmt.Sprintf("only %d of its %d bytes were captured", info.CaptureLength, info.Length)
		} else if frame.Data, err = ethernet(data, from.LinkType()); err != nil {
			return nil, err
		}
		frames = append(frames, frame)
	}
	return frames, nil
}

func openCapture(reader *bufio.Reader) (source, error) {
	magic, err := reader.Peek(4)
	if err != nil {
		return nil, err
	}
	if binary.BigEndian.Uint32(magic) == sectionHeader {
		return pcapgo.NewNgReader(reader, pcapgo.DefaultNgReaderOptions)
	}
	return pcapgo.NewReader(reader)
}

// addresses stand before the type of an Ethernet frame.
var addresses = []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}

// The headers of captures of Linux's "any" interface, and where they have the type.
const (
	cookedLength, cookedType   = 16, 14
	cooked2Length, cooked2Type = 20, 0
	linkTypeLinuxSLL2          = layers.LinkType(276)
)

// ethernet makes an Ethernet frame of what was captured.
func ethernet(data []byte, link layers.LinkType) ([]byte, error) {
	header, at := 0, 0
	switch link {
	case layers.LinkTypeEthernet:
		return data, nil
	case layers.LinkTypeLinuxSLL:
		header, at = cookedLength, cookedType
	case linkTypeLinuxSLL2:
		header, at = cooked2Length, cooked2Type
	case layers.LinkTypeRaw, layers.LinkTypeIPv4, layers.LinkTypeIPv6:
	default:
		return nil, fmt.Errorf("captures of %s cannot be replayed", link)
	}
	if len(data) <= header {
		return nil, errors.New("the capture has a packet without content")
	}
	frame := append([]byte{}, addresses...)
	if header > 0 {
		frame = append(frame, data[at:at+2]...)
	} else if data[0]>>4 == 4 {
		frame = binary.BigEndian.AppendUint16(frame, uint16(layers.EthernetTypeIPv4))
	} else {
		frame = binary.BigEndian.AppendUint16(frame, uint16(layers.EthernetTypeIPv6))
	}
	return append(frame, data[header:]...), nil
}
