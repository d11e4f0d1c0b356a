/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Checksums of the internet: the kernel's helpers for them, and what is computed here. */
#ifndef BRAID_CHECKSUM_H
#define BRAID_CHECKSUM_H

#include "packet.h"

enum {
	BPF_F_RECOMPUTE_CSUM = 1, /* what the NIC summed stays right */
	BPF_F_PSEUDO_HDR = 0x10,
	BPF_F_MARK_MANGLED_0 = 0x20,
	TCP_CHECKSUM_AT = 16,
};

static long (*const bpf_l3_csum_replace)(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to, __u64 size) = (void *)10;
static long (*const bpf_l4_csum_replace)(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to, __u64 flags) = (void *)11;
static __s64 (*const bpf_csum_diff)(const void *from, __u32 from_size, const void *to, __u32 to_size, __u32 seed) = (void *)28;
static __s64 (*const bpf_csum_update)(struct __sk_buff *skb, __u32 sum) = (void *)40;

static __always_inline __u16 folded(__u64 sum)
{
	sum = (__u32)sum + (sum >> 32);
	sum = (__u32)sum + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

static __always_inline __u64 sum_of_address(const struct address *address)
{
	return (__u64)address->word[0] + address->word[1] + address->word[2] + address->word[3];
}

/*
 * Of a TCP segment of this length: what its checksum holds where the NIC is to complete
 * it. Of IPv4, the mark of the mapped form does not count.
 */
static __always_inline __u16 pseudo_header_sum(__u8 family, const struct address *source,
					       const struct address *destination, __u32 length)
{
	__u64 sum = (__u64)bpf_htonl(length) + bpf_htonl(IPPROTO_TCP);

	if (family == AF_INET)
		return folded(sum + source->word[3] + destination->word[3]);
	return folded(sum + sum_of_address(source) + sum_of_address(destination));
}

#endif
