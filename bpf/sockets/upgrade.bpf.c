//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * upgrade: turns the TCP sockets that tasks of chosen network namespaces open
 * into MPTCP sockets. The kernel asks for it on purpose: since Linux 6.7 every
 * socket(2) passes through update_socket_protocol.
 */
#include "kernel_structs.h"

enum {
	SOCK_STREAM = 1,
	SOCK_TYPE_MASK = 0xf,
	IPPROTO_MPTCP = 262,
	MAX_NAMESPACES = 4096,
};

/* What is read of the kernel's structures; their real layout is found on loading. */
struct nsproxy {
	struct net *net_ns;
} __attribute__((preserve_access_index));

struct task_struct {
	struct nsproxy *nsproxy;
} __attribute__((preserve_access_index));

static struct task_struct *(*const bpf_get_current_task_btf)(void) = (void *)158;

/* The chosen network namespaces, by inode number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_NAMESPACES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u8);
} upgraded_namespaces SEC(".maps");

static __always_inline int is_plain_tcp(int family, int type, int protocol)
{
	return (family == AF_INET || family == AF_INET6) && (type & SOCK_TYPE_MASK) == SOCK_STREAM &&
	       (!protocol || protocol == IPPROTO_TCP);
}

SEC("fmod_ret/update_socket_protocol")
int upgrade(__u64 *arguments)
{
	int family = arguments[0], type = arguments[1], protocol = arguments[2];
	struct nsproxy *namespaces;
	__u32 inode;

	if (!is_plain_tcp(family, type, protocol))
		return 0;
	namespaces = bpf_get_current_task_btf()->nsproxy;
	if (!namespaces)
		return 0;
	inode = namespaces->net_ns->ns.inum;
	return bpf_map_lookup_elem(&upgraded_namespaces, &inode) ? IPPROTO_MPTCP : 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
