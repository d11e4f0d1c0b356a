//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Paces credits by round trips that stand in packets: a program on sockets cannot be run for
 * a test. It returns the 64ths of the credit.
 */
#include "../credit_pace.h"
#include "packet.h"

struct paced {
	__u64 rate;
	__u32 segment;
	__u32 round_trip;
	__u32 least_round_trip;
	__u32 pad;
};

SEC("tc")
int pace_credit(struct __sk_buff *skb)
{
	struct paced paced;

	if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &paced, sizeof(paced)))
		return 0;
	return share_of_credit(paced.rate, paced.segment, paced.round_trip, paced.least_round_trip);
}

char _license[] SEC("license") = "Dual BSD/GPL";
