/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the programs of the guard and the agent share. Go's view of these
 * structures is generated from the objects; the pinned maps outlive the agent, so
 * a change of layout needs a new version directory in agent/guard.
 *
 * What the agent writes and what the programs write are in different maps: neither
 * can undo what the other did.
 */
#ifndef BRAID_GUARD_H
#define BRAID_GUARD_H

#include "packet.h"

enum guard_limit {
	MAX_PATHS = 8,
	NO_PATH = MAX_PATHS,   /* a NIC that belongs to no path */
	PLACES = MAX_PATHS + 1,
	/* Rows begin with 1: 0 stands for none. */
	ENDPOINT_ROWS = 1025,
	TENANT_ROWS = 1025,
	MAX_ADDRESSES = 8192,
	MAX_INTERFACES = 2048,
	MAX_NICS = 128,
};

enum allowance_flag {
	SPOOF_CHECK = 1 << 0,
	/* Whose interface it is is not known yet: its addresses are those that are
	 * routed to it. */
	NEW_POD = 1 << 1,
	/* What it sends is charged where it enters the node: on a NIC it would seem to
	 * come from the bridge. */
	CHARGED_AT_ENTRY = 1 << 2,
	/* Shifted by a path: what the endpoint sends there waits in the path's queue. */
	QUEUED = 1 << 8,
};

/* In the place of a row: what comes out of a queue, and was charged before it. */
enum guard_row {
	OUT_OF_QUEUE = 0xffffffffU,
};

/*
 * A price is the time that a byte takes at some rate, in nanoseconds and parts of
 * 1 << 20 of one; 0 where there is no limit. What was sent is paid for with time.
 */
enum price {
	PRICE_SHIFT = 20,
};

enum {
	MILLISECOND = 1000 * 1000,
	/* How far ahead of the time may be sent. */
	BURST = 50 * MILLISECOND,
};

/* How long a limit is ahead of the time, in nanoseconds. */
static __always_inline __s64 ahead(const __u64 *paid, __u64 now)
{
	return *(volatile __u64 *)paid - now;
}

static __always_inline void charge(__u64 *paid, __u64 now, __u64 price, __u32 bytes)
{
	__u64 before = *(volatile __u64 *)paid;

	if ((__s64)(before - now) < 0)
		__sync_val_compare_and_swap(paid, before, now);
	__sync_fetch_and_add(paid, price * bytes >> PRICE_SHIFT);
}

/* The frame with the headers of each segment, as a NIC counts it. */
static __always_inline __u32 wire_bytes(const struct __sk_buff *skb)
{
	__u32 length = skb->len, wire = skb->wire_len;

	return wire > length ? wire : length;
}

/* An endpoint and what it may send; written by the agent. */
struct allowance {
	__u32 tenant;            /* row; 0 for none */
	__u32 flags;
	__u64 price;             /* over all NICs together */
	__u64 share[MAX_PATHS];  /* its fair part where others want more too */
};

/* What an endpoint has sent; written by the programs. */
struct usage {
	__u64 paid;                   /* when everything will have been paid for */
	__u64 share_paid[MAX_PATHS];
	__u64 sent[PLACES];           /* bytes as on the wire */
	__u64 dropped[PLACES];
	__u64 dropped_packets[PLACES];
	__u64 spoofed_packets;
	__u64 unparsable_packets; /* in both directions */
};

/* The ceilings of a tenant, and the time at which each is paid for. */
struct tenant {
	__u64 price[MAX_PATHS];
};

struct tenant_usage {
	__u64 paid[MAX_PATHS];
};

/* The capacity of a path where shares are to be kept. */
struct path {
	__u64 price;
};

struct path_usage {
	__u64 paid;
	__u64 sent; /* of everybody */
	__u64 pad[6]; /* a cache line for each */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_NICS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* ifindex */
	__type(value, __u32); /* path or NO_PATH */
} nics SEC(".maps");

/* Endpoints by the host's end of their interface, and by their addresses. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_INTERFACES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} interfaces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_ADDRESSES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct address);
	__type(value, __u32);
} addresses SEC(".maps");

/* Where else the node's routes to the addresses of a new pod may lead: to the bridge that
 * has its interface, or to the device by which the cluster network reaches pods. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_INTERFACES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} routed_by SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENDPOINT_ROWS);
	__type(key, __u32);
	__type(value, struct allowance);
} allowances SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ENDPOINT_ROWS);
	__type(key, __u32);
	__type(value, struct usage);
} usages SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TENANT_ROWS);
	__type(key, __u32);
	__type(value, struct tenant);
} tenants SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TENANT_ROWS);
	__type(key, __u32);
	__type(value, struct tenant_usage);
} tenant_usages SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PATHS);
	__type(key, __u32);
	__type(value, struct path);
} paths SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PATHS);
	__type(key, __u32);
	__type(value, struct path_usage);
} path_usages SEC(".maps");

/*
 * The queues of the paths that have one: a pair of interfaces, of which the first
 * shapes what is sent by it, and the other one receives it then.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PATHS);
	__type(key, __u32);
	__type(value, __u32); /* ifindex; 0 for none */
} queues SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PATHS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* ifindex of the other end */
	__type(value, __u32); /* that of the NIC */
} queue_ends SEC(".maps");

enum source {
	NOT_IP,     /* or one that cannot be read */
	FROM_IPV4,
	FROM_IPV6,
	TOO_DEEP,   /* behind more tags than anyone sends */
};

enum {
	IPV4_SOURCE = 12,
	IPV6_SOURCE = 8,
};

/*
 * The source address, also of fragments and of frames with VLAN tags: those are
 * sent by the NIC all the same.
 */
static __always_inline enum source read_source(struct __sk_buff *skb, struct address *source)
{
	__u32 offset;
	__be16 protocol = network_protocol(skb, &offset);
	__be32 ipv4;

	if (is_tag(protocol))
		return TOO_DEEP;
	if (protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, offset + IPV4_SOURCE, &ipv4, sizeof(ipv4)))
			return NOT_IP;
		map_ipv4(source, ipv4);
		return FROM_IPV4;
	}
	if (protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, offset + IPV6_SOURCE, source, sizeof(*source)))
			return NOT_IP;
		return FROM_IPV6;
	}
	return NOT_IP;
}

#endif
