//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * leave-queue: the far end of a path's queue. What comes out goes on to the NIC
 * that it was on its way to, as it was.
 */
#include "guard.h"

SEC("tc")
int leave_queue(struct __sk_buff *skb)
{
	__u32 index = skb->ifindex;
	__u32 *nic = bpf_map_lookup_elem(&queue_ends, &index);

	return nic ? bpf_redirect(*nic, 0) : TC_ACT_SHOT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
