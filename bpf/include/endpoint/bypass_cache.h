/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The bypass cache: subflows that no rule concerns, of each CPU, so that their packets
 * leave before their record is looked up.
 */
#ifndef BRAID_BYPASS_CACHE_H
#define BRAID_BYPASS_CACHE_H

#include "classify.h"

enum {
	BYTES_UNVISITED = 1 << 28, /* a subflow's position is followed in steps of 31 bits */
};

static __always_inline struct attachment *attachment_of(__u32 interface)
{
	__u32 slot = interface & (ATTACHMENTS - 1);
	struct attachment *attachment = bpf_map_lookup_elem(&attachments, &slot);

	if (likely(attachment && attachment->interface == interface))
		return attachment;
	return bpf_map_lookup_elem(&attachments_overflow, &interface);
}

static __always_inline __u32 ports_of(const struct subflow_key *key)
{
	return *(const __u32 *)&key->local_port;
}

/* 16 bits that differ between subflows; Go knows them as SteadySlot. */
static __always_inline __u32 folded_key(const struct subflow_key *key)
{
	const __u64 *local = (const void *)&key->local, *remote = (const void *)&key->remote;

	return (local[1] ^ remote[1] ^ ports_of(key)) * 0x9e3779b97f4a7c15 >> 48;
}

static __always_inline struct bypass_entry *bypass_slot_of(__u32 folded)
{
	__u32 slot = folded & (BYPASS_SLOTS - 1);

	return bpf_map_lookup_elem(&bypass_cache, &slot);
}

static __always_inline int is_same_key(const struct subflow_key *a, const struct subflow_key *b)
{
	const __u64 *left = (const void *)a, *right = (const void *)b;

	return ports_of(a) == ports_of(b) && left[1] == right[1] && left[3] == right[3] && left[0] == right[0] &&
	       left[2] == right[2] && a->endpoint == b->endpoint;
}

/* SYN, FIN and RST always visit the record. */
static __always_inline int may_bypass(struct __sk_buff *skb, const struct context *context,
				      const struct attachment *attachment, __u32 direction, __u32 folded)
{
	struct bypass_entry *entry = bypass_slot_of(folded);

	if (!entry || entry->word != context->chain || !is_same_key(&entry->key, &context->key))
		return 0;
	if (entry->generation != attachment->generation || (context->flags & (TCP_SYN | TCP_FIN | TCP_RST)))
		return 0;
	if (direction == TO_ENDPOINT && entry->ingress != arrival_of(skb))
		return 0;
	if (unlikely(entry->left < context->payload))
		return 0;
	entry->left -= context->payload;
	return 1;
}

static __always_inline void invalidate_bypass_of(struct __sk_buff *skb)
{
	struct attachment *attachment = attachment_of(skb->ifindex);

	if (attachment)
		invalidate_bypass(attachment);
}

/* Remembers on this CPU that no rule concerns the subflow, once that is for good; 0 where it is not. */
static __always_inline int cache_bypass(struct __sk_buff *skb, const struct context *context,
					const struct subflow *subflow)
{
	struct attachment *attachment = attachment_of(skb->ifindex);
	struct bypass_entry *entry = bypass_slot_of(folded_key(&context->key));

	if (!entry || !attachment || !(subflow->known & KNOWN_HANDSHAKE))
		return 0;
	if (subflow->sure[0] | subflow->sure[1] | subflow->maybe[0] | subflow->maybe[1])
		return 0;
	if ((subflow->needs_connection && subflow->token) || subflow->backup)
		return 0;
	entry->key = context->key;
	entry->word = context->chain;
	entry->generation = attachment->generation;
	entry->ingress = subflow->ingress;
	entry->left = BYTES_UNVISITED;
	return 1;
}

#endif
