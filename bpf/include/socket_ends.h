/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The addresses and ports of a socket's ends, in the form in which maps have them. */
#ifndef BRAID_SOCKET_ENDS_H
#define BRAID_SOCKET_ENDS_H

#include "packet.h"
#include "tcp_sockets.h"

static __always_inline void read_addresses(struct bpf_sock_ops *ops, struct address *local, struct address *remote)
{
	__be32 local_ipv4 = ops->local_ip4, remote_ipv4 = ops->remote_ip4;

	/* The verifier wants each field of the context read at a fixed offset. */
	barrier_var(local_ipv4);
	barrier_var(remote_ipv4);
	if (ops->family == AF_INET) {
		map_ipv4(local, local_ipv4);
		map_ipv4(remote, remote_ipv4);
		return;
	}
	/* Nor two of them in one. */
	local->word[0] = ops->local_ip6[0];
	barrier();
	local->word[1] = ops->local_ip6[1];
	barrier();
	local->word[2] = ops->local_ip6[2];
	barrier();
	local->word[3] = ops->local_ip6[3];
	barrier();
	remote->word[0] = ops->remote_ip6[0];
	barrier();
	remote->word[1] = ops->remote_ip6[1];
	barrier();
	remote->word[2] = ops->remote_ip6[2];
	barrier();
	remote->word[3] = ops->remote_ip6[3];
}

static __always_inline void read_ports(struct bpf_sock_ops *ops, __be16 *local, __be16 *remote)
{
	*local = bpf_htons(ops->local_port);
	*remote = bpf_htons(bpf_ntohl(ops->remote_port));
}

static __always_inline void read_remote_address(struct sock_common *from, struct address *remote)
{
	if (from->skc_family == AF_INET) {
		map_ipv4(remote, from->skc_daddr);
		return;
	}
	remote->word[0] = from->skc_v6_daddr.in6_u.u6_addr32[0];
	remote->word[1] = from->skc_v6_daddr.in6_u.u6_addr32[1];
	remote->word[2] = from->skc_v6_daddr.in6_u.u6_addr32[2];
	remote->word[3] = from->skc_v6_daddr.in6_u.u6_addr32[3];
}

#endif
