// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * One half of a pair, on the packets: counts for each subflow how many of the packets that
 * come to the pod carry the code point `value`, which its socket never sees. yield.bpf.c is
 * the other half.
 */
#include "braid_program.h"
#include "marks.h"

BRAID_BLOCK(count_marks)
{
	int marked = packet->direction == TO_ENDPOINT && braid_dscp(skb, packet) == value;
	struct marks first = {.packets = 1, .marked = marked}, *counted;
	struct braid_ends ends;

	if (packet->direction != TO_ENDPOINT)
		return BRAID_NEXT;
	braid_ends_of_packet(packet, &ends);
	counted = bpf_map_lookup_elem(&marks, &ends);
	if (!counted) {
		bpf_map_update_elem(&marks, &ends, &first, BPF_NOEXIST);
		return BRAID_NEXT;
	}
	__sync_fetch_and_add(&counted->packets, 1);
	if (marked)
		__sync_fetch_and_add(&counted->marked, 1);
	return BRAID_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
