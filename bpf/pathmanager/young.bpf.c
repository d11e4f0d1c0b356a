//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * young: a filter on the sockets by which the agent hears of the path manager's events.
 * A connection that began is kept here, and nobody is told. The agent looks which of
 * them grow old; one that closes before costs it nothing.
 */
#include "kernel.h"
#include "shared.h"

enum young_limit {
	MAX_YOUNG = 8192,    /* a look goes through the whole table, at some 5 ns a place */
	MESSAGE_BYTES = 168, /* the longest event of a connection has less */
	EVENT_HEADER = 20,   /* of netlink and generic netlink */
};

/* linux/mptcp_pm.h */
enum {
	CONNECTION_CREATED = 1,
	CONNECTION_ESTABLISHED = 2,
	CONNECTION_CLOSED = 3,
	ATTRIBUTE_TOKEN = 1,
};

enum {
	COMMAND_AT = 16,
	DROP = 0,
	PASS = -1,
};

struct young_key {
	__u64 socket; /* the cookie of the one that hears of it */
	__u32 token;
	__u32 pad;
};

struct young_connection {
	__u64 began; /* ns since boot */
	__u32 length;
	__u8 message[MESSAGE_BYTES]; /* as it would have been received */
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_YOUNG);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct young_key);
	__type(value, struct young_connection);
} young_connections SEC(".maps");

/* 1 while the agent does not look: the next connection wakes it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} asleep SEC(".maps");

/* For Go. */
SHARED(enum, young_limit);

static __u64 (*const bpf_get_socket_cookie)(void *skb) = (void *)46;

/* What each event of a connection begins with. */
struct first_attribute {
	__u16 length;
	__u16 type;
	__u32 token;
};

static __always_inline int wakes(void)
{
	__u32 zero = 0, *sleeping = bpf_map_lookup_elem(&asleep, &zero);

	if (!sleeping || !*sleeping)
		return 0;
	*sleeping = 0;
	return 1;
}

static __always_inline int keep(struct __sk_buff *skb, const struct young_key *key)
{
	struct young_connection connection = { .began = bpf_ktime_get_ns() };
	__u32 length = size_within(skb->len, MESSAGE_BYTES);

	if (!length || bpf_skb_load_bytes(skb, 0, connection.message, length))
		return PASS;
	connection.length = length;
	if (bpf_map_update_elem(&young_connections, key, &connection, BPF_ANY))
		return PASS;
	return wakes() ? PASS : DROP;
}

SEC("socket")
int young(struct __sk_buff *skb)
{
	struct first_attribute first;
	struct young_key key = {};
	__u8 command;

	if (bpf_skb_load_bytes(skb, COMMAND_AT, &command, sizeof(command)))
		return PASS;
	if (command == CONNECTION_CREATED)
		return DROP;
	if (command != CONNECTION_ESTABLISHED && command != CONNECTION_CLOSED)
		return PASS;
	if (bpf_skb_load_bytes(skb, EVENT_HEADER, &first, sizeof(first)) || first.type != ATTRIBUTE_TOKEN)
		return PASS;
	key.socket = bpf_get_socket_cookie(skb);
	key.token = first.token;
	if (command == CONNECTION_ESTABLISHED)
		return keep(skb, &key);
	return bpf_map_delete_elem(&young_connections, &key) ? PASS : DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
