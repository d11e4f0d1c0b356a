/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Hides announced addresses and gives them back.
 *
 * A hidden ADD_ADDR is kept as it was, with its HMAC, which nobody else can make.
 * It belongs to the connection: it can be given back on any of its subflows, in
 * any pure ACK towards its receiver. Where the token is unknown the subflow stands
 * for the connection. Of each direction and connection eight are kept, by the
 * lowest bits of their ids.
 */
#ifndef BRAID_ADD_ADDR_H
#define BRAID_ADD_ADDR_H

#include "backup.h"

enum {
	MAX_HIDDEN = 4096,
	HIDDEN_PLACES = 8,  /* of each direction; a power of two */
	ANNOUNCED_BYTES = 32,
	LENGTH_HMAC = 8,
	ADD_ADDR_HEADER = 4, /* kind, length, subtype and flags, id */
	LENGTH_ADD_IPV4 = 16,
	LENGTH_ADD_IPV4_PORT = 18,
	LENGTH_ADD_IPV6 = 28,
	LENGTH_ADD_IPV6_PORT = 30,
	REPLAYS = 12,
	REPLAY_FIRST = 20 * 1000000, /* ns between the first replays; doubles */
};

struct hidden_key {
	struct subflow_key subflow; /* zeros but the endpoint where the token is known */
	__u32 token;
};

struct hidden_address {
	__u64 tried;                  /* ns, when it was last given back */
	__u8 option[ANNOUNCED_BYTES]; /* as it was announced */
	__u8 length;
	__u8 waiting;                 /* 1: its receiver does not know it */
	__u8 tries;
	__u8 bound;                   /* 1: hidden by the cluster's rules */
	__u8 pad[4];
};

struct hidden {
	struct hidden_address address[2 * HIDDEN_PLACES]; /* by direction, then by id */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_HIDDEN);
	__type(key, struct hidden_key);
	__type(value, struct hidden);
} hidden_addresses SEC(".maps");

/* Too large for the stack. */
static const struct hidden nothing_hidden;

static __always_inline void hidden_key_of(struct hidden_key *key, const struct context *context,
					  const struct subflow *subflow)
{
	__builtin_memset(key, 0, sizeof(*key));
	if (subflow->token)
		key->subflow.endpoint = context->key.endpoint;
	else
		key->subflow = context->key;
	key->token = subflow->token;
}

static __always_inline struct hidden_address *hidden_address(const struct context *context,
							     const struct subflow *subflow, __u32 direction,
							     __u32 place)
{
	struct hidden_key key;
	struct hidden *hidden;

	hidden_key_of(&key, context, subflow);
	hidden = bpf_map_lookup_elem(&hidden_addresses, &key);
	if (!hidden)
		return 0;
	place = (direction & 1) * HIDDEN_PLACES + (place & (HIDDEN_PLACES - 1));
	barrier_var(place);
	return &hidden->address[place & (2 * HIDDEN_PLACES - 1)];
}

static __always_inline struct hidden_address *new_hidden_address(const struct context *context,
								 const struct subflow *subflow, __u32 direction,
								 __u32 place)
{
	struct hidden_address *address = hidden_address(context, subflow, direction, place);
	struct hidden_key key;

	if (address)
		return address;
	hidden_key_of(&key, context, subflow);
	bpf_map_update_elem(&hidden_addresses, &key, &nothing_hidden, BPF_NOEXIST);
	return hidden_address(context, subflow, direction, place);
}

/* ADD_ADDR as it announces an address: with HMAC, for either family, with or without port. */
static __always_inline int announces(__u32 length)
{
	return length == LENGTH_ADD_IPV4 || length == LENGTH_ADD_IPV4_PORT || length == LENGTH_ADD_IPV6 ||
	       length == LENGTH_ADD_IPV6_PORT;
}

/*
 * Before its receiver has had a DSS, a pure ACK without any MPTCP option would make
 * it fall back to TCP: the option stays then, with a zero address and HMAC, which
 * no receiver believes.
 */
static __always_inline int blank_or_remove(struct __sk_buff *skb, struct context *context,
					   const struct subflow *subflow, const struct option_place *place)
{
	struct option_bytes *zeros = new_option();
	__u32 direction = context->direction & 1;

	if (context->options.dss || subflow->addresses.signalled >> direction & 1 || !is_pure_ack(context))
		return remove_option(skb, context, place->offset, place->length);
	return replace_bytes(skb, context, place->offset + ADD_ADDR_HEADER, place->length - ADD_ADDR_HEADER, zeros);
}

/* Keeps the announcement; the place it got, or a negative number. */
__noinline int keep_address(struct __sk_buff *skb, struct context *context, struct subflow *subflow,
			    struct option_place *found)
{
	__u8 option[ANNOUNCED_BYTES] = {};
	struct hidden_address *address;
	__u32 length;

	if (!context || !subflow || !found)
		return -1;
	length = size_within(found->length, LENGTH_ADD_IPV6_PORT);
	if (!length || bpf_skb_load_bytes(skb, found->offset, option, length))
		return -1;
	address = new_hidden_address(context, subflow, context->direction, option[3]);
	if (!address)
		return -1;
	__builtin_memcpy(address->option, option, sizeof(option));
	address->length = length;
	address->tries = 0;
	address->waiting = 1;
	if (subflow->bound & ENFORCED_SUPPRESSION)
		address->bound = 1;
	return option[3] & (HIDDEN_PLACES - 1);
}

/* Whether addresses are given back, although this action would hide them. */
static __always_inline int is_giving(const struct subflow *subflow, const struct action *action)
{
	return subflow->addresses.releasing && (!is_enforced(action) || subflow->bound & ENFORCED_RELEASE);
}

/* Hides what this packet announces. */
__noinline int act_suppress_add_addr(struct __sk_buff *skb, struct context *context, struct subflow *subflow,
				 const struct action *action)
{
	struct option_place found = {};
	struct address_state *state;
	int place;

	if (!context || !subflow || !action)
		return UNTOUCHED;
	state = &subflow->addresses;
	state->blocking = 1;
	state->hidden = 1;
	subflow->engaged = 1;
	if (is_enforced(action))
		enforce(subflow, ENFORCED_SUPPRESSION);
	read_options(skb, context);
	if (!(context->options.types & TYPE_ADD_ADDR) || is_giving(subflow, action))
		return UNTOUCHED;
	if (!find_option(skb, context, OPTION_MPTCP, SUBTYPE_ADD_ADDR, &found) || !announces(found.length))
		return UNTOUCHED;
	place = keep_address(skb, context, subflow, &found);
	if (place < 0 || !blank_or_remove(skb, context, subflow, &found))
		return UNTOUCHED;
	if (action->flag & FLAG_CHOSEN)
		state->echo_due[(context->direction ^ 1) & 1] |= 1 << place;
	context->options.read = 0;
	return ACTED;
}

/* Gives back what was hidden, although a rule may go on hiding. */
__noinline int act_release_add_addr(struct __sk_buff *skb, struct context *context, struct subflow *subflow,
			       const struct action *action)
{
	if (!skb || !context || !subflow || !action)
		return UNTOUCHED;
	if (is_enforced(action))
		enforce(subflow, ENFORCED_RELEASE);
	if (subflow->addresses.releasing)
		return UNTOUCHED;
	subflow->addresses.releasing = 1;
	subflow->addresses.hidden = 1;
	subflow->engaged = 1;
	return ACTED;
}

/* The DSS may make room when it says nothing that the next ACK does not say too. */
static __always_inline int dss_is_spare(struct __sk_buff *skb, const struct context *context,
					const struct subflow *subflow)
{
	__u32 known = (context->options.timestamps ? PADDED_TIMESTAMPS : 0) + padded(context->options.dss_length);
	__u8 flags;

	if (!(subflow->addresses.signalled >> context->direction & 1) || known != context->options_length)
		return 0;
	return !bpf_skb_load_bytes(skb, context->options.dss + 3, &flags, sizeof(flags)) &&
	       !(flags & (DSS_FINAL | DSS_MAPPING));
}

/*
 * Puts an option into this pure ACK: beside its options, or instead of DSS, or, as
 * kernels do for the longest ADD_ADDR, instead of the timestamps as well. One with
 * SACK blocks is left alone.
 */
static __always_inline int carry(struct __sk_buff *skb, struct context *context, const struct subflow *subflow,
				 struct option_bytes *option, __u32 length)
{
	__u32 keep;

	if (!can_carry(context) || context->options.sack)
		return 0;
	if (context->options_length + padded(length) <= TCP_OPTIONS_MAX)
		return insert_option(skb, context, option, length);
	if (!dss_is_spare(skb, context, subflow))
		return 0;
	keep = context->options.timestamps && PADDED_TIMESTAMPS + padded(length) <= TCP_OPTIONS_MAX;
	return replace_options(skb, context, option, length, keep);
}

/* The answer to a hidden announcement: the same without HMAC, marked as an echo. */
__noinline int send_echo(struct __sk_buff *skb, struct context *context, struct subflow *subflow, __u32 place)
{
	struct option_bytes *option = new_option();
	struct hidden_address *address;
	__u32 direction, length;

	if (!context || !subflow || !option)
		return UNTOUCHED;
	direction = context->direction & 1;
	address = hidden_address(context, subflow, direction ^ 1, place);
	if (!address || !announces(address->length)) {
		subflow->addresses.echo_due[direction] &= ~(1 << (place & 7));
		return UNTOUCHED;
	}
	length = address->length - LENGTH_HMAC;
	__builtin_memcpy(option->byte, address->option, ANNOUNCED_BYTES);
	option->byte[1] = length;
	option->byte[2] |= FLAG_ECHO;
	if (!carry(skb, context, subflow, option, length))
		return UNTOUCHED;
	subflow->addresses.echo_due[direction] &= ~(1 << (place & 7));
	context->options.read = 0;
	return ACTED;
}

/* What the cluster's rules hid is given back by them, or when they hide no more. */
static __always_inline int stays_hidden(const struct subflow *subflow, const struct hidden_address *address)
{
	return address->bound && (subflow->bound & (ENFORCED_SUPPRESSED | ENFORCED_RELEASE)) == ENFORCED_SUPPRESSED;
}

/*
 * Gives one address back. Returns UNTOUCHED when this packet cannot carry it or it
 * is too early to say it again, ACTED when it was given, and DROPPED never.
 */
__noinline int give_back(struct __sk_buff *skb, struct context *context, struct subflow *subflow, __u32 place)
{
	struct option_bytes *option = new_option();
	struct hidden_address *address;

	if (!context || !subflow || !option)
		return UNTOUCHED;
	address = hidden_address(context, subflow, context->direction, place);
	if (!address || !address->waiting || address->tries >= REPLAYS || stays_hidden(subflow, address))
		return UNTOUCHED;
	if (address->tries && context->now - address->tried < (__u64)REPLAY_FIRST << (address->tries & 15))
		return UNTOUCHED;
	__builtin_memcpy(option->byte, address->option, ANNOUNCED_BYTES);
	if (!carry(skb, context, subflow, option, address->length))
		return UNTOUCHED;
	address->tries++;
	address->tried = context->now;
	context->options.read = 0;
	return ACTED;
}

enum {
	STAYS_HIDDEN = 1 << HIDDEN_PLACES, /* beside the bits of places_waiting() */
};

/*
 * The bits of the places in this direction that wait to be given back, and whether
 * there are others that must not be.
 */
__noinline int places_waiting(struct context *context, struct subflow *subflow, __u32 direction)
{
	struct hidden_address *address;
	__u32 place, waiting = 0;

	if (!context || !subflow)
		return 0;
	for (place = 0; place < HIDDEN_PLACES; place++) {
		address = hidden_address(context, subflow, direction, place);
		if (!address)
			return 0;
		if (address->waiting && address->tries < REPLAYS)
			waiting |= stays_hidden(subflow, address) ? STAYS_HIDDEN : 1 << place;
	}
	return waiting;
}

/* An echo of the receiver's own: it knows the address now. */
__noinline int note_echo(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	struct option_place found = {};
	struct hidden_address *address;
	__u8 id;

	if (!context || !subflow || !find_option(skb, context, OPTION_MPTCP, SUBTYPE_ADD_ADDR, &found))
		return 0;
	if (found.length < ADD_ADDR_HEADER || bpf_skb_load_bytes(skb, found.offset + 3, &id, sizeof(id)))
		return 0;
	address = hidden_address(context, subflow, context->direction ^ 1, id);
	if (address && address->option[3] == id)
		address->waiting = 0;
	return 0;
}

static __always_inline __u32 lowest(__u32 bits)
{
	__u32 place = 0;

#pragma clang loop unroll(full)
	for (place = 0; place < HIDDEN_PLACES - 1; place++)
		if (bits >> place & 1)
			break;
	return place;
}

/* They are given back when a rule says so, or when no rule hides them any more. */
static __always_inline int is_released(const struct context *context, struct subflow *subflow)
{
	struct address_state *state = &subflow->addresses;
	enum asked asked;

	if (state->releasing || state->blocking)
		return state->releasing;
	asked = is_asked(context, subflow, state->lifted, ACTION_SUPPRESS_ADD_ADDR);
	if (asked == ASKED_STILL)
		state->blocking = 1;
	return asked == ASKED_NO_MORE;
}

static __always_inline int give_back_waiting(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	__u32 direction = context->direction & 1, waiting;

	waiting = places_waiting(context, subflow, direction);
	if (waiting & (STAYS_HIDDEN - 1))
		return give_back(skb, context, subflow, lowest(waiting));
	if (!waiting && !places_waiting(context, subflow, direction ^ 1))
		subflow->addresses.hidden = 0;
	return UNTOUCHED;
}

__noinline int settle_addresses(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	struct address_state *state;
	__u32 direction, due;
	int result = UNTOUCHED;

	if (!context || !subflow || context->flags & (TCP_SYN | TCP_RST))
		return UNTOUCHED;
	state = &subflow->addresses;
	direction = context->direction & 1;
	due = state->echo_due[direction];
	if (context->options.types & TYPE_ADD_ADDR_ECHO)
		note_echo(skb, context, subflow);
	else if (due)
		result = send_echo(skb, context, subflow, lowest(due));
	else if (state->hidden && is_released(context, subflow))
		result = give_back_waiting(skb, context, subflow);
	if (context->options.types & TYPE_DSS)
		state->signalled |= 1 << direction;
	return result;
}

static __always_inline int addresses_are_settled(const struct subflow *subflow)
{
	const struct address_state *state = &subflow->addresses;

	return !state->blocking && !state->releasing && !state->hidden && !state->echo_due[0] && !state->echo_due[1];
}

static __always_inline void unsettle_addresses(const struct context *context, struct subflow *subflow)
{
	subflow->addresses.blocking = !!(subflow->bound & ENFORCED_SUPPRESSION);
	subflow->addresses.releasing = !!(subflow->bound & ENFORCED_RELEASE);
	subflow->addresses.lifted = context->now;
}

#endif
