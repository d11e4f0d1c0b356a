/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Steady subflows: what the packets of one direction come to is kept beside the record
 * until the clock's next tick. Those that are like the ones before, and go on where
 * these ended, look up no record and ask no rule; they are only counted, and get the
 * window that was granted. Everything else visits the record, and what it changes there
 * voids what is kept here.
 *
 * Amounts are totals, and those of the record too: whoever reads it meanwhile takes the
 * greater one (endpoint.FromEndpointSteady in Go). All processors share the table, so
 * that none of them misses where another one ended. As with records, two that see the
 * same direction at once may lose a count.
 */
#ifndef BRAID_STEADY_H
#define BRAID_STEADY_H

#include "run_rules.h"

enum steady_limit {
	STEADY_SLOTS = 8192, /* a power of two, at most 65536 */
	STEADY_AFTER = 3,    /* packets of a tick and a direction, at first */
};

enum steady_flags {
	STEADY_ACKNOWLEDGES = 1, /* nothing but steady_way.acknowledged */
	STEADY_AWAITED = 2,      /* what acknowledges steady_way.awaited ends a measurement */
};

/* One direction of a steady subflow, in a line of the cache. */
struct steady_way {
	__u64 bytes;        /* the totals of struct traffic */
	__u64 packets;
	__u32 highest;
	__u32 timestamp;
	__u32 tick;         /* jiffies; holds no longer */
	__u32 types;        /* of each packet, enum packet_type; 0: nothing is kept */
	__u32 rules;        /* that match each packet */
	__u32 acknowledged;
	__u32 awaited;
	__u16 window;       /* higher ones are lowered to this one; not scaled */
	__u8 flags;         /* enum steady_flags */
	__u8 pad[17];
};

struct steady {
	__u64 word;         /* attachment.chain; 0: of nobody */
	struct subflow_key key;
	__u32 ingress;      /* by which packets for the endpoint come in */
	__u8 pad[12];
	struct steady_way way[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STEADY_SLOTS);
	__uint(map_flags, BPF_F_MMAPABLE); /* lines of the cache begin where entries do */
	__type(key, __u32);
	__type(value, struct steady);
} steady_subflows SEC(".maps");

static __always_inline struct steady *steady_slot(__u32 folded)
{
	__u32 slot = folded & (STEADY_SLOTS - 1);

	return bpf_map_lookup_elem(&steady_subflows, &slot);
}

/*
 * The types of a segment whose options are timestamps and a DSS, or the first of them,
 * or none; 0 for all others.
 */
static __always_inline __u32 usual_types(struct __sk_buff *skb, const struct context *context, __u32 *timestamp)
{
	__u32 at = (context->transport & TRANSPORT_MASK) + sizeof(struct tcphdr), length = context->options_length;
	__u32 types = context->payload ? TYPE_DATA : TYPE_PURE_ACK, size, flags;
	__u8 *option = (void *)(unsigned long)skb->data + at, *end = (void *)(unsigned long)skb->data_end;

	if (!length)
		return types;
	if (length < PADDED_TIMESTAMPS || option + PADDED_TIMESTAMPS > end || *(__u32 *)option != bpf_htonl(NOP_NOP_TIMESTAMPS))
		return 0;
	*timestamp = bpf_ntohl(*(__u32 *)(option + 4));
	if (length == PADDED_TIMESTAMPS)
		return types;
	option += PADDED_TIMESTAMPS;
	length -= PADDED_TIMESTAMPS;
	if (option + SHORTEST_DSS > end)
		return 0;
	size = option[1];
	flags = option[3];
	if (option[0] != OPTION_MPTCP || option[2] >> 4 != SUBTYPE_DSS || size > length || size + 3 < length ||
	    size < SHORTEST_DSS + data_ack_length(flags) + mapping_length(flags))
		return 0;
	return types | TYPE_DSS | (flags & DSS_ACK ? TYPE_DATA_ACK : 0);
}

/* Whether the packet goes on where the ones before ended, as far as the header tells. */
static __always_inline int goes_on(struct __sk_buff *skb, const struct context *context, const struct steady *steady,
				   const struct steady_way *way, __u32 direction)
{
	if (steady->word != context->chain || way->tick != (__u32)bpf_jiffies64() || !is_same_key(&steady->key, &context->key))
		return 0;
	if ((context->flags & (TCP_SYN | TCP_FIN | TCP_RST | TCP_ACK)) != TCP_ACK)
		return 0;
	if (direction == TO_ENDPOINT && steady->ingress != arrival_of(skb))
		return 0;
	if (context->payload && context->sequence != way->highest)
		return 0;
	if (way->flags & STEADY_ACKNOWLEDGES && context->acknowledgement != way->acknowledged)
		return 0;
	return !(way->flags & STEADY_AWAITED) || is_after(way->awaited, context->acknowledgement);
}

/* A function of its own: the verifier would follow its ways for each way that leads there. */
__noinline int count_rules(struct counters *counters, struct context *context, __u32 rules)
{
	int i;

	if (!counters || !context)
		return 0;
	for (i = 0; i < FIRST_RULES && rules; i++) {
		count_hit(counters, context, lowest_bit(rules));
		rules &= rules - 1;
	}
	return 0;
}

/* Most often there is one rule, and no call. */
static __always_inline void count_steady(struct context *context, __u32 rules)
{
	struct counters *counters = counters_of(context);

	if (!counters || !rules)
		return;
	count_hit(counters, context, lowest_bit(rules));
	rules &= rules - 1;
	if (unlikely(rules))
		count_rules(counters, context, rules);
}

/* Lets the packet pass without its record, or returns 0. */
static __always_inline int passes_steadily(struct __sk_buff *skb, struct context *context, struct steady *steady,
					   __u32 direction)
{
	struct steady_way *way = &steady->way[direction];
	__u32 timestamp = 0, types;

	if (!goes_on(skb, context, steady, way, direction))
		return 0;
	types = usual_types(skb, context, &timestamp);
	if (!types || types != way->types)
		return 0;
	if (way->window < context->window && !set_window_in_place(skb, context, bpf_htons(way->window)))
		return 0;
	way->packets += segments_of(skb);
	way->bytes += context->payload;
	way->highest += context->payload;
	if (timestamp && is_after(timestamp, way->timestamp))
		way->timestamp = timestamp;
	count_steady(context, way->rules);
	return 1;
}

/* Of a way of which nothing is kept, the amounts are no more than the record's, and the rest is old. */
static __always_inline void bring_up_to_date(struct traffic *traffic, const struct steady_way *way)
{
	__s32 ahead = way->types ? way->highest - traffic->highest : 0;

	if (!traffic->begun)
		return;
	if (way->bytes > traffic->bytes)
		traffic->bytes = way->bytes;
	if (way->packets > traffic->packets)
		traffic->packets = way->packets;
	if (ahead > 0) {
		traffic->highest = way->highest;
		traffic->position += ahead;
	}
	if (way->types && way->timestamp &&
	    (!traffic->last_timestamp || is_after(way->timestamp, traffic->last_timestamp)))
		traffic->last_timestamp = way->timestamp;
}

/* Made since by this packet, or by the agent: what is kept here is not its own. */
static __always_inline int is_new_record(const struct subflow *subflow)
{
	return !subflow->traffic[FROM_ENDPOINT].begun && !subflow->traffic[TO_ENDPOINT].begun;
}

/*
 * A visit to the record: brings it up to date, and keeps nothing of this direction until
 * the packet has passed. What was before a SYN was another subflow's.
 */
__noinline int begin_visit(struct context *context, struct subflow *subflow, struct steady *steady)
{
	if (!context || !subflow || !steady)
		return 0;
	if (unlikely(context->flags & TCP_SYN || is_new_record(subflow))) {
		steady->word = 0;
		return 0;
	}
	bring_up_to_date(&subflow->traffic[FROM_ENDPOINT], &steady->way[FROM_ENDPOINT]);
	bring_up_to_date(&subflow->traffic[TO_ENDPOINT], &steady->way[TO_ENDPOINT]);
	steady->way[context->direction & 1].types = 0;
	/* What was steady before will be so again. */
	context->visits += STEADY_AFTER - 1;
	return 1;
}

static __always_inline int is_steady(const struct context *context, const struct steady *steady)
{
	return steady->word && is_same_key(&steady->key, &context->key);
}

/* Whether actors would have nothing to do on more packets like this one. */
static __always_inline int actors_rest(const struct context *context, const struct subflow *subflow)
{
	return !subflow->engaged || (rates_are_quiet(context, subflow) && backup_is_quiet(context, subflow) &&
				     addresses_are_quiet(context, subflow));
}

/* A measurement begins with the first packet of a tick that can be timed. */
static __always_inline int is_timed(const struct context *context, const struct subflow *subflow)
{
	const struct traffic *traffic = &subflow->traffic[context->direction & 1];
	const struct traffic *other = &subflow->traffic[~context->direction & 1];

	if (other->timed_at && other->timed_by != TIMED_BY_SEQUENCE)
		return 0;
	return traffic->timed_at || traffic->timed_tick == context->tick || !(context->payload || context->options.timestamps);
}

/* The agent shares a limit of several sockets out by what it reads in their records alone. */
static __always_inline int is_shared_out(const struct subflow *subflow)
{
	const struct limit *limit = &subflow->limit[FROM_ENDPOINT];

	return subflow->paced && limit->rate && limit->scope != SCOPE_SUBFLOW;
}

/* What a report waits for comes with a packet that visits the record, and reports it. */
static __always_inline int is_settled_down(const struct context *context, const struct subflow *subflow)
{
	if (subflow->word != context->chain || !(subflow->known & KNOWN_HANDSHAKE) || subflow->ended)
		return 0;
	if ((subflow->needs_connection && subflow->token) || is_shared_out(subflow))
		return 0;
	return is_timed(context, subflow) && actors_rest(context, subflow);
}

/* Takes the slot from a subflow that rests, whose record gets what it is owed. */
static __always_inline int take_slot(const struct context *context, struct subflow *subflow, struct steady *steady)
{
	struct subflow_key key; /* 6.1 takes none from the memory of an argument */
	struct subflow *before;

	if (is_steady(context, steady)) {
		steady->word = context->chain;
		steady->ingress = subflow->ingress;
		return 1;
	}
	if (steady->word) {
		if (steady->way[0].tick == (__u32)context->tick || steady->way[1].tick == (__u32)context->tick)
			return 0;
		key = steady->key;
		before = bpf_map_lookup_elem(&subflows, &key);
		if (before) {
			bring_up_to_date(&before->traffic[0], &steady->way[0]);
			bring_up_to_date(&before->traffic[1], &steady->way[1]);
		}
	}
	steady->word = 0;
	barrier();
	__builtin_memset(steady->way, 0, sizeof(steady->way));
	steady->key = context->key;
	steady->ingress = subflow->ingress;
	barrier();
	steady->word = context->chain;
	return 1;
}

/* The window to which those of further packets are lowered, as keep_window() does. */
static __always_inline __u16 window_kept(const struct subflow *subflow, __u32 direction)
{
	__u32 limited = opposite(direction) & 1, window;
	__u8 shift = (scale_of(subflow, limited) - 1) & 15;

	if (!subflow->engaged || !subflow->limit[limited].rate || subflow->limit[limited].in_use != MECHANISM_WINDOW ||
	    subflow->window[limited].begun & WINDOW_HOLDS)
		return 0xffff;
	window = (subflow->window[limited].window + (1U << shift) - 1) >> shift;
	return window < 0xffff ? window : 0xffff;
}

static __always_inline void note_conditions(const struct context *context, const struct subflow *subflow,
					    struct steady_way *way, __u32 direction)
{
	const struct traffic *other = &subflow->traffic[~direction & 1];
	const struct limit *limit = &subflow->limit[opposite(direction) & 1];

	way->window = window_kept(subflow, direction);
	way->flags = 0;
	if (subflow->engaged && limit->rate && limit->in_use == MECHANISM_WINDOW)
		way->flags |= STEADY_ACKNOWLEDGES;
	if (other->timed_at)
		way->flags |= STEADY_AWAITED;
	way->acknowledged = context->acknowledgement;
	way->awaited = other->timed_sequence;
	way->rules = context->progress.counted;
	way->tick = context->tick;
}

/*
 * Whether the next packet may well be like this one: no repetition, and under a window no
 * acknowledgement, for the next one acknowledges something else.
 */
static __always_inline int may_go_on(const struct context *context, const struct subflow *subflow)
{
	const struct traffic *traffic = &subflow->traffic[context->direction & 1];
	const struct limit *limit = &subflow->limit[opposite(context->direction) & 1];

	if (context->payload)
		return context->sequence + context->payload == traffic->highest;
	return !limit->rate || limit->in_use != MECHANISM_WINDOW;
}

/* Keeps what this packet came to, where the next ones like it come to the same. */
static __always_inline void keep_steady(struct __sk_buff *skb, struct context *context, struct subflow *subflow,
					struct steady *steady)
{
	const struct traffic *traffic = &subflow->traffic[context->direction & 1];
	struct steady_way *way = &steady->way[context->direction & 1];
	__u32 timestamp = 0, types;

	if (!may_go_on(context, subflow))
		return;
	types = usual_types(skb, context, &timestamp);
	if (!types || !is_settled_down(context, subflow) || !take_slot(context, subflow, steady))
		return;
	way->bytes = traffic->bytes;
	way->packets = traffic->packets;
	way->highest = traffic->highest;
	way->timestamp = traffic->last_timestamp;
	note_conditions(context, subflow, way, context->direction & 1);
	barrier();
	way->types = types;
}

/* What the visit changed for the other direction. */
static __always_inline void void_other(const struct context *context, const struct subflow *subflow, struct steady *steady)
{
	const struct traffic *traffic = &subflow->traffic[context->direction & 1];
	struct steady_way *other = &steady->way[~context->direction & 1];
	int is_awaited = traffic->timed_by == TIMED_BY_SEQUENCE && other->flags & STEADY_AWAITED &&
			 other->awaited == traffic->timed_sequence;

	if (context->stirred || (traffic->timed_at && !is_awaited))
		other->types = 0;
}

/*
 * A function of its own, as begin_visit(): the verifier would follow its ways for each
 * that leads there.
 */
__noinline int end_visit(struct __sk_buff *skb, struct context *context, struct subflow *subflow,
			 struct steady *steady)
{
	if (!context || !subflow || !steady)
		return 0;
	if (is_steady(context, steady))
		void_other(context, subflow, steady);
	if (context->differs || context->visits < STEADY_AFTER)
		return 0;
	if ((context->flags & (TCP_SYN | TCP_FIN | TCP_RST | TCP_ACK)) == TCP_ACK)
		keep_steady(skb, context, subflow, steady);
	return 1;
}

#endif
