// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* A schedule that paces each subflow as its receiver asks, until two seconds after it last did. */
#include "braid_schedule.h"
#include "paces.h"

enum {
	LASTS = 2000000000, /* ns */
};

BRAID_SCHEDULE(keep_pace)
{
	struct asked_pace *asked;
	struct braid_ends ends;

	braid_ends_of_socket(socket, &ends);
	asked = bpf_map_lookup_elem(&asked_paces, &ends);
	if (!asked)
		return;
	if (bpf_ktime_get_ns() - asked->at > LASTS) {
		braid_pace(socket, BRAID_UNPACED);
		bpf_map_delete_elem(&asked_paces, &ends);
		return;
	}
	braid_pace(socket, asked->number * PACE_UNIT);
}

char _license[] SEC("license") = "Dual BSD/GPL";
