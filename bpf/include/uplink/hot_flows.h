/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows of which several packets come by within a few milliseconds: what most of their packets
 * need is in an array, in front of flows. To look it up there is no call of a function, which
 * is what takes time in the look-up of flows, and what an array's place has is compared at once.
 *
 * flows stays what is true. An entry here is a copy of what decides about a flow's packets,
 * which may be used within one step of the kernel's timer: the first packet after it, and all
 * that are not plain, are those of flows. Whether paths, peers and preferences are usable is
 * asked with each packet. What each packet notes (struct hot_flow, "notes") is in the entry for
 * as long, and goes back to flows with the first packet after that.
 *
 * Several processors use an entry at once, and it may be another flow's the next moment. So
 * each word of it bears in its upper half the number of the claim by which a flow took the
 * entry, which none has had before: who reads sees words of that claim, or knows better. What
 * a processor writes too late bears a number that is over, and counts for nothing.
 */
#ifndef BRAID_UPLINK_HOT_FLOWS_H
#define BRAID_UPLINK_HOT_FLOWS_H

#include "maps.h"

enum hot_limit {
	HOT_FLOWS = 4096,
	HOT_REST = 4,        /* steps of the timer without a packet after which another flow may have the entry */
	HOT_CLAIM = 32,      /* the bits from here on are the claim's, in each word */
	HOT_IPV6 = 1,        /* in a claim's number: the flow is one of IPv6 */
	HOT_NEXT_CLAIM = 2,
	HOT_BEHIND = 1 << 24, /* as WINDOW */
};

struct hot_flow {
	__u64 head;          /* the step of the timer in which the entry may be used */
	__u64 ports;
	__u64 local, remote; /* the last words of the addresses */
	__u64 way;           /* peer, path and allowed */
	__u64 choice;        /* turn, tries, last and account */
	__u64 state;         /* role, incoming, subtype and avoided */
	__u64 used;
	__u64 endpoint;
	__u64 pad;           /* what decides takes two cache lines, notes one, and the rest of IPv6 another */
	__u64 sequence;
	__u64 token;
	__u64 from;
	__u64 counted;
	__u64 advanced;      /* advanced_jiffy */
	__u64 pad1;
	/* Notes. */
	__u64 sent;
	__u64 received;
	__u64 unanswered;
	__u64 slowest;
	__u64 redirected;
	__u64 gathered;      /* head when these went back to flows */
	__u64 asked;         /* which flow would have the entry, and in which step of the timer it asked */
	__u64 pad2;
	__u64 local_first[3], remote_first[3]; /* of IPv6 */
	__u64 pad3[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HOT_FLOWS);
	__type(key, __u32);
	__type(value, struct hot_flow);
} hot_flows SEC(".maps");

/* A flow's entry as one packet finds it. */
struct hot {
	struct hot_flow *entry;
	__u64 head;
	__u8 is_own;    /* it is this flow's */
	__u8 is_usable; /* by this packet */
};

static __always_inline __u64 hot_word(const __u64 *word)
{
	return *(const volatile __u64 *)word;
}

static __always_inline void set_hot(__u64 *word, __u64 head, __u32 value)
{
	*(volatile __u64 *)word = (head >> HOT_CLAIM << HOT_CLAIM) | value;
}

static __always_inline int is_of_claim(__u64 word, __u64 head)
{
	return word >> HOT_CLAIM == head >> HOT_CLAIM;
}

static __always_inline __u64 hot_differs(const __u64 *word, __u64 claim, __u32 value)
{
	return hot_word(word) ^ (claim | value);
}

/* Whether the entry with this head is this flow's. */
static __always_inline int is_hot(const struct hot_flow *entry, __u64 head, const struct flow_key *key, __u8 is_ipv6)
{
	__u64 claim = head >> HOT_CLAIM << HOT_CLAIM, differs;
	int i;

	differs = hot_differs(&entry->ports, claim, *(const __u32 *)&key->local_port) |
		  hot_differs(&entry->local, claim, key->local.word[3]) |
		  hot_differs(&entry->remote, claim, key->remote.word[3]) | ((head >> HOT_CLAIM & HOT_IPV6) ^ is_ipv6);
	if (differs)
		return 0;
	if (!is_ipv6)
		return 1;
#pragma clang loop unroll(full)
	for (i = 0; i < 3; i++)
		if (hot_differs(&entry->local_first[i], claim, key->local.word[i]) |
		    hot_differs(&entry->remote_first[i], claim, key->remote.word[i]))
			return 0;
	return 1;
}

static __always_inline struct hot_flow *hot_entry(__u32 mixed)
{
	__u32 index = mixed >> 20 & (HOT_FLOWS - 1);

	return bpf_map_lookup_elem(&hot_flows, &index);
}

/* Looks whether a packet's flow has an entry. */
static __always_inline void find_hot(struct hot *hot, const struct flow_key *key, __u8 family)
{
	hot->is_own = 0;
	hot->is_usable = 0;
	hot->head = 0;
	hot->entry = hot_entry(mix_ends(key));
	if (!hot->entry)
		return;
	hot->head = hot_word(&hot->entry->head);
	hot->is_own = is_hot(hot->entry, hot->head, key, family == AF_INET6);
	hot->is_usable = hot->is_own && (__u32)hot->head == (__u32)bpf_jiffies64();
}

/* Neither begins nor ends anything. */
static __always_inline int is_plain(const struct packet *packet)
{
	return (packet->flags & (TCP_SYN | TCP_FIN | TCP_RST | TCP_ACK)) == TCP_ACK;
}

/* A word of the entry; what differs in the upper half of `foreign` is not of its claim. */
static __always_inline __u32 read_hot(const struct hot *hot, const __u64 *word, __u64 *foreign)
{
	__u64 value = hot_word(word);

	*foreign |= value ^ hot->head;
	return value;
}

/* Of what decides about a packet the part that all need. */
static __always_inline void read_way(const struct hot *hot, struct flow *flow, __u64 *foreign)
{
	__u32 way = read_hot(hot, &hot->entry->way, foreign), choice = read_hot(hot, &hot->entry->choice, foreign);

	flow->peer = way;
	flow->path = way >> 16;
	flow->allowed = way >> 24;
	flow->turn = choice;
	flow->tries = choice >> 8;
	flow->last = choice >> 16;
	flow->account = choice >> 24;
}

/* And what tells whether its numbers are expected. */
static __always_inline void read_numbers(const struct hot *hot, struct flow *flow, __u64 *foreign)
{
	__u32 state = read_hot(hot, &hot->entry->state, foreign);

	flow->role = state;
	flow->incoming = state >> 8;
	flow->subtype = state >> 16;
	flow->avoided = state >> 24;
	flow->sequence = read_hot(hot, &hot->entry->sequence, foreign);
	flow->token = read_hot(hot, &hot->entry->token, foreign);
}

static __always_inline void copy_decision(struct hot_flow *to, __u64 head, const struct flow *flow)
{
	set_hot(&to->way, head, flow->peer | flow->path << 16 | (__u32)flow->allowed << 24);
	set_hot(&to->choice, head, flow->turn | flow->tries << 8 | flow->last << 16 | (__u32)flow->account << 24);
	set_hot(&to->state, head, flow->role | flow->incoming << 8 | flow->subtype << 16 | (__u32)flow->avoided << 24);
	set_hot(&to->used, head, flow->used);
	set_hot(&to->endpoint, head, flow->endpoint);
	set_hot(&to->sequence, head, flow->sequence);
	set_hot(&to->token, head, flow->token);
	set_hot(&to->from, head, flow->from);
	set_hot(&to->counted, head, flow->counted);
	set_hot(&to->advanced, head, flow->advanced_jiffy | !!flow->advanced << 16);
}

/* Only where it is ahead: another processor may have gone on from it. */
static __always_inline void gather_number(__u32 *to, __u64 word, __u64 head)
{
	if (is_of_claim(word, head) && *to - (__u32)word >= HOT_BEHIND)
		*to = word;
}

/* What was noted here goes to flows. */
static __always_inline void gather_notes(struct hot_flow *entry, __u64 head, struct flow *flow)
{
	__u64 unanswered = hot_word(&entry->unanswered), slowest = hot_word(&entry->slowest);
	__u64 redirected = hot_word(&entry->redirected);

	gather_number(&flow->sent, hot_word(&entry->sent), head);
	gather_number(&flow->received, hot_word(&entry->received), head);
	if (is_of_claim(unanswered, head) && flow->unanswered != (__u32)unanswered)
		flow->unanswered = unanswered;
	if (is_of_claim(slowest, head) && flow->slowest != (__u8)slowest)
		flow->slowest = slowest;
	if (is_of_claim(redirected, head) && flow->redirected != (__u32)redirected)
		flow->redirected = redirected;
}

/* Before a packet is one of flows: what others of it have noted. */
static __always_inline void return_notes(const struct hot *hot, struct flow *flow)
{
	if (!hot->is_own || hot_word(&hot->entry->gathered) == hot->head || hot_word(&hot->entry->head) != hot->head)
		return;
	gather_notes(hot->entry, hot->head, flow);
	if (!hot->is_usable)
		*(volatile __u64 *)&hot->entry->gathered = hot->head;
}

/* The notes of a flow that has to leave its entry to another. */
static __always_inline void evict_hot(struct hot_flow *entry, __u64 head)
{
	__u64 foreign = 0, ports = hot_word(&entry->ports);
	struct flow_key key = {};
	struct flow *flow;
	int i;

	if (hot_word(&entry->gathered) == head)
		return;
	foreign = ports ^ head;
	*(__u32 *)&key.local_port = ports;
	if (head >> HOT_CLAIM & HOT_IPV6) {
		for (i = 0; i < 3; i++) {
			__u64 local = hot_word(&entry->local_first[i]), remote = hot_word(&entry->remote_first[i]);

			foreign |= (local ^ head) | (remote ^ head);
			key.local.word[i] = local;
			key.remote.word[i] = remote;
		}
	} else {
		key.local.word[2] = key.remote.word[2] = bpf_htonl(0xffff);
	}
	foreign |= (hot_word(&entry->local) ^ head) | (hot_word(&entry->remote) ^ head);
	key.local.word[3] = hot_word(&entry->local);
	key.remote.word[3] = hot_word(&entry->remote);
	flow = foreign >> HOT_CLAIM ? 0 : bpf_map_lookup_elem(&flows, &key);
	if (flow)
		gather_notes(entry, head, flow);
}

/* Takes the entry for this flow; the head that it has then, or 0. */
static __always_inline __u64 claim_hot(struct hot_flow *entry, __u64 head, const struct flow_key *key, __u8 is_ipv6,
				       __u32 jiffy)
{
	__u64 claim = (((head >> HOT_CLAIM) | HOT_IPV6) + 1) | is_ipv6, taken = claim << HOT_CLAIM | jiffy;
	int i;

	if (jiffy - (__u32)head < HOT_REST)
		return 0;
	evict_hot(entry, head);
	if (__sync_val_compare_and_swap(&entry->head, head, taken) != head)
		return 0;
	set_hot(&entry->ports, taken, *(const __u32 *)&key->local_port);
	set_hot(&entry->local, taken, key->local.word[3]);
	set_hot(&entry->remote, taken, key->remote.word[3]);
	if (!is_ipv6)
		return taken;
#pragma clang loop unroll(full)
	for (i = 0; i < 3; i++) {
		set_hot(&entry->local_first[i], taken, key->local.word[i]);
		set_hot(&entry->remote_first[i], taken, key->remote.word[i]);
	}
	return taken;
}

/* Copies a flow to its entry, for this step of the timer. */
__noinline int keep_hot(const struct flow *flow, const struct flow_key *ends, __u32 is_ipv6)
{
	__u32 jiffy = bpf_jiffies64();
	struct hot_flow *entry;
	struct flow_key key;
	__u64 head, now;

	if (!flow || !ends)
		return 0;
	key = *ends;
	is_ipv6 = !!is_ipv6;
	entry = hot_entry(mix_ends(&key));
	if (!entry)
		return 0;
	head = hot_word(&entry->head);
	if (!is_hot(entry, head, &key, is_ipv6))
		head = claim_hot(entry, head, &key, is_ipv6, jiffy);
	if (!head)
		return 0;
	copy_decision(entry, head, flow);
	set_hot(&entry->sent, head, flow->sent);
	set_hot(&entry->received, head, flow->received);
	set_hot(&entry->unanswered, head, flow->unanswered);
	set_hot(&entry->slowest, head, flow->slowest);
	set_hot(&entry->redirected, head, flow->redirected);
	now = (head >> HOT_CLAIM << HOT_CLAIM) | jiffy;
	if (now != head)
		__sync_val_compare_and_swap(&entry->head, head, now);
	return 1;
}

/*
 * After a packet that was one of flows: the entry goes on with what it changed. A flow gets one
 * with its second packet in a step of the timer.
 */
static __always_inline void follow_hot(const struct hot *hot, const struct flow *flow, const struct flow_key *key,
				       __u8 family, int is_out)
{
	__u32 jiffy;
	__u64 asked;

	if (!hot->entry)
		return;
	if (hot->is_usable) {
		copy_decision(hot->entry, hot->head, flow);
		set_hot(&hot->entry->unanswered, hot->head, flow->unanswered);
		if (is_out) {
			set_hot(&hot->entry->sent, hot->head, flow->sent);
			set_hot(&hot->entry->redirected, hot->head, flow->redirected);
		} else {
			set_hot(&hot->entry->received, hot->head, flow->received);
			set_hot(&hot->entry->slowest, hot->head, flow->slowest);
		}
		return;
	}
	jiffy = bpf_jiffies64();
	if (!hot->is_own && jiffy - (__u32)hot->head < HOT_REST)
		return;
	asked = (__u64)mix_ends(key) << 32 | jiffy;
	if (hot_word(&hot->entry->asked) != asked)
		*(volatile __u64 *)&hot->entry->asked = asked;
	else
		keep_hot(flow, key, family == AF_INET6);
}

/* A flow is over, or another begins with its ends: nothing of it counts any more. Global: the stack is small. */
__noinline int forget_hot(const struct flow_key *key)
{
	struct hot_flow *entry;
	__u64 head;

	if (!key)
		return 0;
	entry = hot_entry(mix_ends(key));
	if (!entry)
		return 0;
	head = hot_word(&entry->head);
	if (!is_hot(entry, head, key, head >> HOT_CLAIM & HOT_IPV6))
		return 0;
	__sync_val_compare_and_swap(&entry->head, head, ((head >> HOT_CLAIM) + HOT_NEXT_CLAIM) << HOT_CLAIM);
	return 1;
}

#endif
