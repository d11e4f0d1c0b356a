/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the agent tells of the node's tunnels. */
#ifndef BRAID_KNOWN_TUNNELS_H
#define BRAID_KNOWN_TUNNELS_H

#include "kernel.h"

enum tunnel_limit {
	MAX_TUNNEL_PORTS = 8,
};

enum tunnel_kind {
	NO_TUNNEL = 0,
	TUNNEL_VXLAN = 1,
	TUNNEL_GENEVE = 2,
	TUNNEL_IP = 4, /* IP in IP, of either family */
};

/* By what packets of the node's tunnels are known. */
struct tunnels {
	__be16 port[MAX_TUNNEL_PORTS]; /* of UDP; 0 where the place is free */
	__u8 kind[MAX_TUNNEL_PORTS];
	__u32 kinds;   /* of all the node's tunnels */
	__u32 pad;
	__u64 filter;  /* a bit for each port: port_bit() */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tunnels);
} tunnels SEC(".maps");

static __always_inline const struct tunnels *tunnels_here(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&tunnels, &zero);
}

#endif
