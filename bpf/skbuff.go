// SPDX-License-Identifier: Apache-2.0

package bpf

// SKBuff is struct __sk_buff of linux/bpf.h, the context of a TC program. A test run of
// one (BPF_PROG_TEST_RUN) takes some of its fields and gives back others.
type SKBuff struct {
	Len, PktType, Mark, QueueMapping, Protocol uint32
	VlanPresent, VlanTCI, VlanProto, Priority  uint32
	IngressIfindex, Ifindex, TCIndex           uint32
	Cb                                         [5]uint32
	Hash, TCClassid, Data, DataEnd, NapiID     uint32
	Family, RemoteIP4, LocalIP4                uint32
	RemoteIP6, LocalIP6                        [4]uint32
	RemotePort, LocalPort, DataMeta            uint32
	FlowKeys, Tstamp                           uint64
	WireLen, GSOSegs                           uint32
	Sk                                         uint64
	GSOSize                                    uint32
	TstampType                                 uint32
	Hwtstamp                                   uint64
}

// XDPMetadata is struct xdp_md of linux/bpf.h, the context of an XDP program.
type XDPMetadata struct {
	Data, DataEnd, DataMeta                     uint32
	IngressIfindex, RxQueueIndex, EgressIfindex uint32
}
