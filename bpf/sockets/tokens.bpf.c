//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The peers' tokens of MPTCP connections, which no interface of the kernel tells:
 * a token is the hash of a key, and the key is hashed here, where it stays.
 */
#include "kernel_structs.h"
#include "sha256.h"
#include "shared.h"

struct token_pair {
	__u32 local;
	__u32 remote;
};

/* For Go. */
SHARED(struct, token_pair);

SEC("iter/tcp")
int list_tokens(struct bpf_iter__tcp *ctx)
{
	struct seq_file *seq = ctx->meta->seq;
	struct sock_common *common = ctx->sk_common;
	struct mptcp_subflow_context *subflow;
	struct token_pair pair = {};
	struct tcp_sock *socket;
	struct key_hash hash;
	__u64 key = 0;

	if (!common)
		return 0;
	socket = bpf_skc_to_tcp_sock(common);
	if (!socket || !socket->is_mptcp)
		return 0;
	subflow = socket->inet_conn.icsk_ulp_data;
	if (bpf_probe_read_kernel(&key, sizeof(key), &subflow->remote_key) || !key)
		return 0;
	if (bpf_probe_read_kernel(&pair.local, sizeof(pair.local), &subflow->token))
		return 0;
	sha256_of_key(key >> 32, key, &hash);
	pair.remote = hash.first;
	bpf_seq_write(seq, &pair, sizeof(pair));
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
