//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * listen: in a relay's namespace, where every address is its own, the relay's listeners
 * answer at all of them and at all ports.
 */
#include "kernel.h"

enum {
	BPF_MAP_TYPE_SOCKMAP = 15,
	SK_PASS = 1,
};

struct bpf_sk_lookup {
	__u64 cookie;
	__u32 family;
	__u32 protocol;
};

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 2);
	__type(key, __u32); /* 0: for IPv4, 1: for IPv6 */
	__type(value, __u64);
} listeners SEC(".maps");

static long (*const bpf_sk_release)(void *socket) = (void *)86;
static long (*const bpf_sk_assign)(void *ctx, void *socket, __u64 flags) = (void *)124;

SEC("sk_lookup")
int listen(struct bpf_sk_lookup *ctx)
{
	__u32 version = ctx->family == AF_INET6;
	void *socket;

	if (ctx->protocol != IPPROTO_TCP)
		return SK_PASS;
	socket = bpf_map_lookup_elem(&listeners, &version);
	if (!socket)
		return SK_PASS;
	bpf_sk_assign(ctx, socket, 0);
	bpf_sk_release(socket);
	return SK_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
