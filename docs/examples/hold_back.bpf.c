// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A schedule: holds back subflows whose round trip is more than twice as long as
 * that of the fastest one of their connection. The kernel's scheduler would fill
 * them too, and the receiver would wait for what they carry.
 */
#include "braid_schedule.h"

enum {
	CONNECTIONS = 4096,
	TIMES_SLOWER = 2,
	TRICKLE = 125000, /* bytes a second: enough to keep measuring the round trip */
};

struct connection {
	__u32 fastest; /* us */
	__u32 port;    /* local port of the subflow that it belongs to */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CONNECTIONS);
	__type(key, __u32);
	__type(value, struct connection);
} held_connections SEC(".maps");

BRAID_SCHEDULE(hold_back)
{
	struct connection own = {.fastest = socket->srtt_us >> 3, .port = socket->local_port};
	__u32 token = braid_token(socket);
	struct connection *fastest;

	if (!token || !own.fastest)
		return;
	fastest = bpf_map_lookup_elem(&held_connections, &token);
	/* The fastest one's own word counts, also when it has become slower. */
	if (!fastest || own.fastest <= fastest->fastest || fastest->port == own.port) {
		bpf_map_update_elem(&held_connections, &token, &own, BPF_ANY);
		braid_pace(socket, BRAID_UNPACED);
		return;
	}
	braid_pace(socket, own.fastest > TIMES_SLOWER * fastest->fastest ? TRICKLE : BRAID_UNPACED);
}

char _license[] SEC("license") = "Dual BSD/GPL";
