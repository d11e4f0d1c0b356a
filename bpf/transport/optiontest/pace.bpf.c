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

struct followed {
	__u64 last_rate;
	__u64 rate;
	__u32 last;
	__u32 right;
};

SEC("tc")
int pace_next(struct __sk_buff *skb)
{
	struct followed followed;

	if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr), &followed, sizeof(followed)))
		return 0;
	return next_share(share_of_other(followed.last, followed.last_rate, followed.rate), followed.right);
}

char _license[] SEC("license") = "Dual BSD/GPL";
