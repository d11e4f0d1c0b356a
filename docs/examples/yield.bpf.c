// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The other half of count_marks.bpf.c, in the stack: a schedule that holds a subflow back
 * while more than half of the packets that come to it are marked. The connection's other
 * subflows carry the rest.
 */
#include "braid_schedule.h"
#include "marks.h"

#ifndef YIELDING
#define YIELDING 500000 /* bytes a second: a burst of the kernel's scheduler has passed in time */
#endif

BRAID_SCHEDULE(yield)
{
	struct braid_ends ends;
	struct marks *counted;
	__u32 packets, marked;

	braid_ends_of_socket(socket, &ends);
	counted = bpf_map_lookup_elem(&marks, &ends);
	if (!counted)
		return;
	packets = counted->packets;
	marked = counted->marked;
	/* A packet that comes just now is lost to the count, which is a share. Where none came, none is marked. */
	counted->packets = 0;
	counted->marked = 0;
	braid_pace(socket, 2 * marked > packets ? YIELDING : BRAID_UNPACED);
}

char _license[] SEC("license") = "Dual BSD/GPL";
