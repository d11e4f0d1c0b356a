//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * at-nic: the XDP hook of a path's NIC, before the kernel makes anything of a frame.
 * Drops what the chain of the endpoint that it is for would drop, where the packet alone
 * tells that. Everything else passes as it is, and nothing is noted of it.
 */
#define AT_XDP
#include "endpoint/at_nic.h"

/* A tag is that of an interface of its own, and of a tunnel's frame the node is the receiver. */
static __always_inline int is_for(hook_frame *frame, const struct hooked_nic *nic)
{
	struct ethhdr *ethernet = frame_begin(frame);

	if ((void *)(ethernet + 1) > frame_end(frame))
		return 0;
	if (ethernet->h_proto != bpf_htons(ETH_P_IP) && ethernet->h_proto != bpf_htons(ETH_P_IPV6))
		return 0;
	return !__builtin_memcmp(ethernet->h_dest, nic->address, sizeof(nic->address));
}

/*
 * Whether the node would send it to the endpoint's interface. An address may have become
 * another's of which the agent does not know yet.
 */
static __always_inline int is_routed_there(hook_frame *frame, const struct context *context, __u32 device)
{
	struct bpf_fib_lookup route = { .family = context->family, .ifindex = frame->ingress_ifindex };
	long result;

	if (context->family == AF_INET) {
		route.src[0] = context->key.remote.word[3];
		route.dst[0] = context->key.local.word[3];
	} else {
		__builtin_memcpy(route.src, &context->key.remote, sizeof(route.src));
		__builtin_memcpy(route.dst, &context->key.local, sizeof(route.dst));
	}
	result = bpf_fib_lookup(frame, &route, sizeof(route), 0);
	return (result == BPF_FIB_LKUP_RET_SUCCESS || result == BPF_FIB_LKUP_RET_NO_NEIGH) && route.ifindex == device;
}

/* What to_endpoint would know of the packet without having seen another one. */
static __always_inline void know_packet(hook_frame *frame, struct context *context, struct subflow *subflow,
					const struct chain *chain)
{
	context->segments = 1;
	context->types = types_of_header(context);
	context->data_known = 0;
	forget_options(context);
	if (context->flags & TCP_SYN || chain->needs & NEEDS_OPTIONS)
		read_options(frame, context);
	learn_path(context, subflow, frame->ingress_ifindex);
}

/* The number of the rule that drops it, from 1; 0 for none. */
static __always_inline int find_rule(hook_frame *frame, struct nic_run *run)
{
	struct chain *chain = chain_of(&run->context);

	if (!chain)
		return 0;
	know_packet(frame, &run->context, &run->subflow, chain);
	return dropped_by(chain, &run->context, &run->subflow);
}

static __always_inline int drop(struct hooked_nic *nic, struct context *context, __u32 rule)
{
	struct counters *counters = counters_of(context);

	if (!counters)
		return XDP_PASS;
	count(counters, context, rule - 1, ACTED);
	__sync_fetch_and_add(&nic->dropped, 1);
	return XDP_DROP;
}

SEC("xdp.frags")
int at_nic(struct xdp_md *frame)
{
	__u32 index = frame->ingress_ifindex, zero = 0, rule;
	struct hooked_nic *nic = bpf_map_lookup_elem(&hooked_nics, &index);
	struct nic_run *run = bpf_map_lookup_elem(&nic_runs, &zero);
	struct attachment *attachment;
	struct reached *reached;

	if (!nic || !run || !is_for(frame, nic))
		return XDP_PASS;
	run->context.direction = TO_ENDPOINT;
	if (!parse_in(frame, &run->context, TO_ENDPOINT))
		return XDP_PASS;
	reached = bpf_map_lookup_elem(&reached_endpoints, &run->context.key.local);
	attachment = reached ? attachment_of(reached->interface) : 0;
	if (!attachment)
		return XDP_PASS;
	run->context.chain = attachment->chain;
	rule = run->context.chain ? find_rule(frame, run) : 0;
	if (!rule || !is_routed_there(frame, &run->context, reached->device))
		return XDP_PASS;
	return drop(nic, &run->context, rule);
}

char _license[] SEC("license") = "Dual BSD/GPL";
