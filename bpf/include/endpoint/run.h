/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The run of a packet through its endpoint's chain. What concerns nobody leaves
 * first: without a chain, no TCP, or a subflow that no rule concerns.
 *
 * The functions are global where the verifier would otherwise check them once for
 * each rule, and their frames are small: the deepest chain of calls, into a block
 * of one's own or into an edit of options, shares 512 bytes of stack.
 */
#ifndef BRAID_RUN_H
#define BRAID_RUN_H

#include "classify.h"
#include "custom.h"
#include "report.h"
#include "settle.h"

enum {
	BYTES_UNVISITED = 1 << 28, /* a subflow's position is followed in steps of 31 bits */
	FIRST_RULES = 8,           /* are looked at before the loop that can do all */
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

static __always_inline struct unconcerned *unconcerned_slot(const struct subflow_key *key)
{
	__u64 *local = (void *)&key->local, *remote = (void *)&key->remote;
	__u64 folded = (local[1] ^ remote[1] ^ ports_of(key)) * 0x9e3779b97f4a7c15;
	__u32 slot = folded >> 48 & (UNCONCERNED_SLOTS - 1);

	return bpf_map_lookup_elem(&unconcerned, &slot);
}

static __always_inline int is_same_key(const struct subflow_key *a, const struct subflow_key *b)
{
	const __u64 *left = (const void *)a, *right = (const void *)b;

	return ports_of(a) == ports_of(b) && left[1] == right[1] && left[3] == right[3] && left[0] == right[0] &&
	       left[2] == right[2] && a->endpoint == b->endpoint;
}

/* SYN, FIN and RST always visit the record. */
static __always_inline int is_unconcerned(struct __sk_buff *skb, const struct context *context,
					  const struct attachment *attachment, __u32 direction)
{
	struct unconcerned *entry = unconcerned_slot(&context->key);

	if (!entry || entry->word != context->chain || !is_same_key(&entry->key, &context->key))
		return 0;
	if (entry->generation != attachment->generation || (context->flags & (TCP_SYN | TCP_FIN | TCP_RST)))
		return 0;
	if (direction == TO_ENDPOINT && entry->ingress != skb->ingress_ifindex)
		return 0;
	if (unlikely(entry->left < context->payload))
		return 0;
	entry->left -= context->payload;
	return 1;
}

/*
 * What selectors and actors find in the context besides the headers. The coarse
 * clock moves on with the jiffies, which cost nothing to read.
 */
static __always_inline void complete_context(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	__u64 tick = bpf_jiffies64();

	context->segments = segments_of(skb);
	context->types = types_of_header(context);
	context->data_known = 0;
	context->connection_sent = 0;
	forget_options(context);
	context->tick = tick;
	context->fresh_tick = subflow->tick != tick;
	if (unlikely(context->fresh_tick)) {
		subflow->tick = tick;
		subflow->last_seen = bpf_ktime_get_coarse_ns();
		if (!subflow->first_seen)
			subflow->first_seen = subflow->last_seen;
	}
	context->now = subflow->last_seen;
	context->fresh_way = subflow->visited[context->direction & 1] != (__u32)tick;
	if (unlikely(context->fresh_way))
		subflow->visited[context->direction & 1] = tick;
}

static __always_inline void void_unconcerned_of(struct __sk_buff *skb)
{
	struct attachment *attachment = attachment_of(skb->ifindex);

	if (attachment)
		void_unconcerned(attachment);
}

/* A record of its own, where another subflow may have been. */
static __noinline struct subflow *new_subflow(struct __sk_buff *skb, struct context *context, int is_known)
{
	if (is_known)
		void_unconcerned_of(skb);
	if (bpf_map_update_elem(&subflows, &context->key, &fresh_subflow, BPF_ANY))
		return 0;
	return bpf_map_lookup_elem(&subflows, &context->key);
}

/* A SYN that is not a repetition begins a subflow. */
static __always_inline struct subflow *find_subflow(struct __sk_buff *skb, struct context *context)
{
	struct subflow *subflow = bpf_map_lookup_elem(&subflows, &context->key);

	if (unlikely(!subflow))
		return new_subflow(skb, context, 0);
	if (unlikely(asks(context)) && (!(subflow->known & KNOWN_SYN) || subflow->syn_sequence != context->sequence))
		return new_subflow(skb, context, 1);
	return subflow;
}

static __always_inline struct chain *chain_of(const struct context *context)
{
	__u32 slot = CHAIN_SLOT(context->chain), zero = 0;
	void *map = bpf_map_lookup_elem(&chains, &slot);

	return map ? bpf_map_lookup_elem(map, &zero) : 0;
}

static __always_inline struct counters *counters_of(const struct context *context)
{
	__u32 row = CHAIN_ROW(context->chain);

	return bpf_map_lookup_elem(&chain_counters, &row);
}

/* What the rules asked for has changed: each may have to ask again. */
static __always_inline void unlatch(struct subflow *subflow)
{
	subflow->latched[FROM_ENDPOINT] = 0;
	subflow->latched[TO_ENDPOINT] = 0;
}

/* Makes the memo anew for the chain that the endpoint has now. */
__noinline int classify(struct context *context, struct subflow *subflow)
{
	struct chain *chain;

	if (!context || !subflow)
		return 0;
	chain = chain_of(context);
	if (!chain)
		return 0;
	forget_asking_rule(subflow);
	subflow->recorded = 0;
	subflow->stack = 0;
	unlatch(subflow);
	classify_direction(chain, context, subflow, FROM_ENDPOINT);
	classify_direction(chain, context, subflow, TO_ENDPOINT);
	keep_bonds(chain, subflow);
	unsettle(context, subflow);
	subflow->needs_connection = !!(chain->needs & NEEDS_CONNECTION);
	barrier();
	subflow->word = context->chain;
	return 1;
}

/* The position of a packet's first byte in the connection's stream. */
static __always_inline void locate_data(struct context *context, struct subflow *subflow,
					struct mptcp_connection *connection)
{
	__u32 direction = context->direction & 1;
	struct traffic *traffic = &subflow->traffic[direction];
	const struct options_seen *seen = &context->options;
	__u64 position;

	if (!(connection->sequence_known >> direction & 1) || !context->payload)
		return;
	if (!seen->data_sequence_bytes) {
		/* The first data may come with MP_CAPABLE, which maps it without a number. */
		context->data_known = !!(seen->types & TYPE_MP_CAPABLE);
		context->data_position = 0;
		return;
	}
	position = seen->data_sequence - connection->initial_data_sequence[direction];
	if (seen->data_sequence_bytes == 4)
		position = connection->data_position[direction] +
			   (__s32)((__u32)position - (__u32)connection->data_position[direction]);
	/* One mapping may hold for several segments. */
	if (traffic->window_scale && seen->mapped_at)
		position += (__s32)(context->sequence - traffic->initial_sequence - seen->mapped_at);
	if ((__s64)(position - connection->data_position[direction]) > 0)
		connection->data_position[direction] = position;
	context->data_position = position;
	context->data_known = 1;
}

/* Adds what is new of this subflow to its connection. */
__noinline int record_connection(struct context *context, struct subflow *subflow)
{
	struct mptcp_connection *connection;
	struct traffic *traffic;
	__u64 fresh;

	if (!context || !subflow)
		return 0;
	connection = connection_of(context->key.endpoint, subflow->token);
	if (!connection)
		return 0;
	traffic = &subflow->traffic[context->direction & 1];
	fresh = traffic->position - traffic->counted;
	traffic->counted = traffic->position;
	context->connection_sent = __sync_fetch_and_add(&connection->sent[context->direction & 1], fresh);
	/* What was not counted before, because no rule asked, was sent before this packet. */
	if (fresh > traffic->position - context->sent)
		context->connection_sent += fresh - (traffic->position - context->sent);
	locate_data(context, subflow, connection);
	return 1;
}

/* Remembers on this CPU that no rule concerns the subflow, once that is for good. */
static __always_inline void remember_unconcerned(struct __sk_buff *skb, const struct context *context,
						 const struct subflow *subflow)
{
	struct attachment *attachment = attachment_of(skb->ifindex);
	struct unconcerned *entry = unconcerned_slot(&context->key);

	if (!entry || !attachment || !(subflow->known & KNOWN_HANDSHAKE))
		return;
	if (subflow->sure[0] | subflow->sure[1] | subflow->maybe[0] | subflow->maybe[1])
		return;
	if (subflow->needs_connection && subflow->token)
		return;
	entry->key = context->key;
	entry->word = context->chain;
	entry->generation = attachment->generation;
	entry->ingress = subflow->ingress;
	entry->left = BYTES_UNVISITED;
}

static __always_inline int report_for(struct context *context, struct subflow *subflow, __u8 due)
{
	ask_for_report(subflow, due, context->rule);
	return UNTOUCHED;
}

static __always_inline int act_record(struct subflow *subflow)
{
	subflow->recorded = 1;
	return UNTOUCHED;
}

/* For the programs at the sockets, which know the rules by their numbers. */
static __always_inline int act_stack(const struct context *context, struct subflow *subflow)
{
	subflow->stack |= 1ULL << (context->rule & (MAX_RULES - 1));
	return UNTOUCHED;
}

/* enum result, or NOT_SELECTED. */
static __always_inline int act(struct __sk_buff *skb, struct context *context, struct subflow *subflow,
			       const struct action *action)
{
	switch (action->kind) {
	case ACTION_RATE_LIMIT:
		return act_rate_limit(skb, context, subflow, action);
	case ACTION_SET_BACKUP:
		return act_set_backup(skb, context, subflow, action);
	case ACTION_SUPPRESS_ADD_ADDR:
		return act_suppress_add_addr(skb, context, subflow, action);
	case ACTION_RELEASE_ADD_ADDR:
		return act_release_add_addr(skb, context, subflow, action);
	case ACTION_REPORT_CONNECTION:
		return report_for(context, subflow, DUE_CONNECTION);
	case ACTION_REPORT_SUBFLOW:
		return report_for(context, subflow, DUE_SUBFLOW);
	case ACTION_RECORD:
		return act_record(subflow);
	case ACTION_DROP:
		return DROPPED;
	case ACTION_RESET:
		return act_refuse(skb, context, subflow, action);
	case ACTION_CUSTOM:
		return act_custom(skb, context, subflow, action);
	case ACTION_STACK:
		return act_stack(context, subflow);
	}
	return UNTOUCHED;
}

static __always_inline void count_hit(struct counters *counters, const struct context *context, __u32 index)
{
	barrier_var(index);
	index &= MAX_RULES - 1;
	__sync_fetch_and_add(&counters->rule[index].hits, 1);
	if (context->payload)
		__sync_fetch_and_add(&counters->rule[index].bytes, context->payload);
}

/* A function of its own: the verifier would follow its ways for each turn of the loop. */
__noinline int count(struct counters *counters, struct context *context, __u32 index, __u32 result)
{
	if (!counters || !context || index >= MAX_RULES)
		return 0;
	count_hit(counters, context, index);
	if (result != UNTOUCHED)
		__sync_fetch_and_add(&counters->rule[index].acted, 1);
	return 0;
}

/*
 * The number of the lowest bit of a word that is not 0. The compiler looks it up in
 * a table, whose values the verifier does not know.
 */
static __always_inline __u32 lowest_bit(__u64 word)
{
	__u32 bit = __builtin_ctzll(word);

	barrier_var(bit);
	return bit & (MAX_RULES - 1);
}

/* Looks at what differs between packets; what does not was decided by the memo. */
static __always_inline int is_selected(struct chain *chain, struct context *context, struct subflow *subflow, __u32 rule)
{
	__u32 direction = context->direction & 1, at = chain->rule[rule].first_selector;

	if (rule < REMEMBERED_RULES)
		at = subflow->begin[direction][rule & (REMEMBERED_RULES - 1)];
	return matches_packet(chain, context, subflow, at);
}

/*
 * Rules whose actions last are done with once they have been noted, and then only
 * counted, but for an announcement of an address, which is hidden where it is seen.
 * Once in a tick they are asked all the same: two processors may have noted
 * opposite wishes at once.
 */
static __always_inline int is_latched(const struct context *context, const struct subflow *subflow, __u32 rule)
{
	return (subflow->latched[context->direction & 1] >> rule & 1) && !context->fresh_way &&
	       !(context->options.types & TYPE_ADD_ADDR);
}

static __always_inline int lasts(const struct subflow *subflow, __u32 kind)
{
	const __u32 lasting = 1 << ACTION_RATE_LIMIT | 1 << ACTION_SET_BACKUP | 1 << ACTION_SUPPRESS_ADD_ADDR |
			      1 << ACTION_RELEASE_ADD_ADDR | 1 << ACTION_REPORT_CONNECTION | 1 << ACTION_REPORT_SUBFLOW |
			      1 << ACTION_RECORD | 1 << ACTION_STACK;

	return (lasting >> (kind & 31) & 1) && !(kind == ACTION_SUPPRESS_ADD_ADDR && subflow->addresses.releasing);
}

/* Goes on to the next rule; one that does not match has no actions left. */
static __always_inline void next_rule(struct chain *chain, struct context *context, struct subflow *subflow,
				     struct progress *at)
{
	struct rule *rule;

	at->rule = lowest_bit(at->left);
	at->left &= at->left - 1;
	rule = &chain->rule[at->rule];
	if (!(at->sure >> at->rule & 1) && !is_selected(chain, context, subflow, at->rule))
		return;
	context->rule = at->rule;
	at->lasting = 1;
	at->action = rule->first_action;
	at->actions = rule->actions;
	at->outcome = UNTOUCHED;
}

/* A lasting action that changed something changes what the others' wishes do. */
static __always_inline void note_lasting(struct subflow *subflow, struct progress *at, __u32 kind, int result)
{
	int is_lasting = lasts(subflow, kind);

	if (!is_lasting || result != UNTOUCHED)
		at->lasting = 0;
	if (is_lasting && result != UNTOUCHED)
		unlatch(subflow);
}

/* A rule's actions are done. */
static __always_inline void end_rule(struct counters *counters, struct context *context, struct subflow *subflow,
				     const struct progress *at)
{
	count(counters, context, at->rule, at->outcome);
	if (at->lasting)
		subflow->latched[context->direction & 1] |= 1ULL << (at->rule & (MAX_RULES - 1));
}

static __always_inline int next_action(struct __sk_buff *skb, struct chain *chain, struct context *context,
				       struct subflow *subflow, struct progress *at)
{
	__u32 index = at->action++;
	int result;

	at->actions--;
	barrier_var(index);
	if (index >= MAX_ACTIONS)
		return UNTOUCHED;
	result = act(skb, context, subflow, &chain->action[index]);
	note_lasting(subflow, at, chain->action[index].kind, result);
	if (result == NOT_SELECTED)
		at->actions = 0;
	else if (result != UNTOUCHED)
		at->outcome = ACTED;
	return result;
}

/* As is_selected(); a selector of types that decides is asked without a call. */
static __always_inline int is_selected_first(struct chain *chain, struct context *context, struct subflow *subflow,
					     __u32 rule)
{
	__u32 at = subflow->begin[context->direction & 1][rule & (REMEMBERED_RULES - 1)];

	if (rule >= REMEMBERED_RULES)
		return is_selected(chain, context, subflow, rule);
	if (likely(at < MAX_SELECTORS) && chain->selector[at].kind == SELECT_TYPES)
		at = follow_type(&chain->selector[at], context);
	return at < MAX_SELECTORS ? matches_packet(chain, context, subflow, at) : at == MATCHED;
}

/* Counts the first rules as long as they are latched or do not match, and gives those that are left. */
static __always_inline __u64 count_latched(struct chain *chain, struct counters *counters, struct context *context,
					   struct subflow *subflow, __u64 sure, __u64 left)
{
	int i;

	for (i = 0; i < FIRST_RULES; i++) {
		__u32 rule;

		if (!left)
			break;
		rule = lowest_bit(left);
		if (sure >> rule & 1 || is_selected_first(chain, context, subflow, rule)) {
			if (!is_latched(context, subflow, rule))
				break;
			count_hit(counters, context, rule);
		}
		left &= left - 1;
	}
	return left;
}

/*
 * The rules that concern the packet, in their order, until one drops it. One loop
 * over rules and actions alike: calls are dear, and the verifier follows each turn
 * of nested loops. Where it is is kept in memory, of which the verifier knows
 * nothing: one turn is as good as another for it.
 */
static __always_inline int run_rules(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	struct progress *at;
	struct counters *counters;
	struct chain *chain;
	__u64 sure, left;
	int i, result = UNTOUCHED;

	chain = chain_of(context);
	counters = counters_of(context);
	if (!chain || !counters)
		return UNTOUCHED;
	at = &context->progress;
	sure = subflow->sure[context->direction & 1];
	left = count_latched(chain, counters, context, subflow, sure, sure | subflow->maybe[context->direction & 1]);
	if (!left)
		return UNTOUCHED;
	at->sure = sure;
	at->left = left;
	at->actions = 0;
	for (i = 0; i < MAX_RULES + MAX_ACTIONS; i++) {
		if (at->actions) {
			result = next_action(skb, chain, context, subflow, at);
			if (result == DROPPED || !at->actions)
				end_rule(counters, context, subflow, at);
			if (result == DROPPED)
				return DROPPED;
		} else if (at->left) {
			next_rule(chain, context, subflow, at);
		} else {
			break;
		}
	}
	return UNTOUCHED;
}

/* What is learnt from a packet before the chain is asked. */
static __always_inline void note_packet(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	__u32 ingress = skb->ingress_ifindex;
	int in_handshake = (context->flags & TCP_SYN) || !(subflow->known & KNOWN_HANDSHAKE);

	if (context->direction == TO_ENDPOINT && unlikely(ingress != subflow->ingress) && ingress) {
		if (subflow->known & KNOWN_HANDSHAKE)
			void_unconcerned_of(skb);
		learn_path(context, subflow, ingress);
	}
	if (unlikely(in_handshake)) {
		read_options(skb, context);
		learn(skb, context, subflow);
	}
}

static __always_inline int wants_options(const struct context *context, const struct subflow *subflow)
{
	return (subflow->needs[context->direction & 1] & NEEDS_OPTIONS) || subflow->engaged || subflow->recorded;
}

static __always_inline int run_chain(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	__u32 direction = context->direction & 1;
	int result = UNTOUCHED;

	if (subflow->sure[direction] | subflow->maybe[direction])
		result = run_rules(skb, context, subflow);
	if (result != DROPPED && subflow->engaged)
		result = settle_quickly(skb, context, subflow);
	note_end(context, subflow);
	if (subflow->due && is_report_ready(subflow, result == DROPPED))
		report_due(context, subflow);
	return result;
}

/* Brings the record of the packet's subflow up to date; 0 where there is no chain to go by. */
static __always_inline int note(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	note_packet(skb, context, subflow);
	if (unlikely(subflow->word != context->chain) && !classify(context, subflow))
		return 0;
	if (wants_options(context, subflow)) {
		if (likely(!context->options.read))
			read_first_options(skb, context);
		note_backup(subflow, context);
	}
	record(context, subflow);
	if (unlikely(subflow->needs_connection) && subflow->token)
		record_connection(context, subflow);
	return 1;
}

/*
 * Reads from where a packet's record will be read, so that all of it comes into the
 * cache at once: nothing waits for what is read here. A flow that rests finds its
 * record in no cache.
 */
static __always_inline void fetch(const struct subflow *subflow)
{
	(void)*(volatile const __u64 *)&subflow->last_seen;
	(void)*(volatile const __u64 *)&subflow->traffic[FROM_ENDPOINT].bytes;
	(void)*(volatile const __u64 *)&subflow->traffic[FROM_ENDPOINT].timed_at;
	(void)*(volatile const __u64 *)&subflow->traffic[TO_ENDPOINT].bytes;
	(void)*(volatile const __u64 *)&subflow->traffic[TO_ENDPOINT].timed_at;
	(void)*(volatile const __u64 *)&subflow->limit[TO_ENDPOINT].rate;
	(void)*(volatile const __u32 *)&subflow->window[TO_ENDPOINT].acknowledged;
	(void)*(volatile const __u64 *)&subflow->addresses.lifted;
}

static __always_inline int run_subflow(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	__u32 direction = context->direction & 1;

	fetch(subflow);
	complete_context(skb, context, subflow);
	if (!note(skb, context, subflow))
		return UNTOUCHED;
	if (subflow->sure[direction] | subflow->maybe[direction] || subflow->engaged || subflow->due)
		return run_chain(skb, context, subflow);
	note_end(context, subflow);
	remember_unconcerned(skb, context, subflow);
	return UNTOUCHED;
}

static __always_inline int run(struct __sk_buff *skb, __u32 direction)
{
	struct attachment *attachment = attachment_of(skb->ifindex);
	struct context *context = bpf_map_lookup_elem(&run_context, &direction);
	struct subflow *subflow;

	if (!attachment || !context)
		return TCX_NEXT;
	context->chain = attachment->chain;
	if (!context->chain)
		return TCX_NEXT;
	context->direction = direction;
	context->key.endpoint = attachment->endpoint;
	if (!parse_in(skb, context, direction) || likely(is_unconcerned(skb, context, attachment, direction)))
		return TCX_NEXT;
	subflow = find_subflow(skb, context);
	if (!subflow)
		return TCX_NEXT;
	return run_subflow(skb, context, subflow) == DROPPED ? TC_ACT_SHOT : TCX_NEXT;
}

#endif
