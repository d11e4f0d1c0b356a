// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Where data is sent: notes what ask_pace.bpf.c asks for, for keep_pace.bpf.c. The rule's
 * match says which peers may ask, `value` the least that they can ask for.
 */
#include "braid_option.h"
#include "paces.h"

BRAID_BLOCK(heed_pace)
{
	struct asked_pace asked = {};
	struct braid_ends ends;
	__u16 number;

	if (packet->direction != TO_ENDPOINT || !braid_read_own(skb, packet, PACE_TYPE, &number))
		return BRAID_NEXT;
	asked.at = bpf_ktime_get_ns();
	asked.number = number < value ? value : number;
	braid_ends_of_packet(packet, &ends);
	bpf_map_update_elem(&asked_paces, &ends, &asked, BPF_ANY);
	return BRAID_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
