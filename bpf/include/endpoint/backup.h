/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Makes a subflow a backup, or none, by MP_PRIO in pure ACKs. It governs what its
 * receiver sends, so each end is told, and told again until it must have heard.
 */
#ifndef BRAID_BACKUP_H
#define BRAID_BACKUP_H

#include "still_asked.h"
#include "enforced.h"
#include "edit.h"
#include "options.h"

enum {
	LENGTH_PRIO = 3,
	TELL_AT_LEAST = 3,  /* times, at once */
	TELL_WITHOUT_ECHO = 8, /* where no timestamps show what arrived */
	TELL_AT_MOST = 16,
};

/* What the rules desire; settle() sees to it. */
__noinline int act_set_backup(struct __sk_buff *skb, struct context *context, struct subflow *subflow,
			      const struct action *action)
{
	__u8 desired;

	if (!skb || !context || !subflow || !action)
		return UNTOUCHED;
	if (is_enforced(action))
		enforce(subflow, ENFORCED_BACKUP);
	else if (subflow->bound & ENFORCED_BACKUP)
		return UNTOUCHED;
	desired = action->flag & FLAG_CHOSEN ? BACKUP_ON : BACKUP_OFF;
	if (subflow->backup_state.wanted == desired)
		return UNTOUCHED;
	subflow->backup_state.wanted = desired;
	subflow->engaged = 1;
	return ACTED;
}

/*
 * What the receiver of this direction is to believe. When the rules desire nothing
 * any more, that is again what the sender said itself.
 */
static __always_inline __u8 desired_backup(const struct context *context, struct subflow *subflow, __u32 direction)
{
	struct backup_state *state = &subflow->backup_state;
	__u8 told = state->told[direction & 1];

	if (state->wanted || !told)
		return state->wanted;
	switch (is_asked(context, subflow, state->lifted, ACTION_SET_BACKUP)) {
	case ASKED_PERHAPS:
		return BACKUP_AS_IT_IS;
	case ASKED_STILL:
		state->wanted = told;
		return told;
	default:
		return subflow->backup >> direction & 1 ? BACKUP_ON : BACKUP_OFF;
	}
}

/* What the other direction was told has arrived when its timestamp comes back. */
static __always_inline void note_arrival(const struct context *context, struct backup_state *state)
{
	__u32 told = context->direction ^ 1;
	__u8 times = state->times[told & 1];

	if (!state->told[told & 1] || times < TELL_AT_LEAST)
		return;
	if (!state->timestamp[told & 1] || !context->options.timestamps) {
		if (times >= TELL_WITHOUT_ECHO)
			state->arrived |= 1 << told;
		return;
	}
	if ((__s32)(context->options.echoed - state->timestamp[told & 1]) >= 0)
		state->arrived |= 1 << told;
}

/* The first times at once; then in intervals that double, from a millisecond on. */
static __always_inline int is_due(const struct context *context, const struct backup_state *state, __u32 direction)
{
	__u8 times = state->times[direction & 1];

	if (state->arrived >> direction & 1 || times >= TELL_AT_MOST)
		return 0;
	if (times < TELL_AT_LEAST || !context->options.timestamps)
		return 1;
	return context->options.timestamp - state->timestamp[direction & 1] >= 1U << ((times - TELL_AT_LEAST) & 15);
}

/* A pure ACK of a working MPTCP subflow that says nothing else about MPTCP. */
static __always_inline int can_carry(const struct context *context)
{
	return is_pure_ack(context) && context->options.dss && !context->options.mptcp;
}

static __always_inline int tell(struct __sk_buff *skb, struct context *context, struct backup_state *state, __u8 desired)
{
	__u32 direction = context->direction & 1;
	struct option_bytes *option;

	if (!can_carry(context) || (state->told[direction] == desired && !is_due(context, state, direction)))
		return UNTOUCHED;
	option = new_option();
	if (!option)
		return UNTOUCHED;
	option->byte[0] = OPTION_MPTCP;
	option->byte[1] = LENGTH_PRIO;
	option->byte[2] = SUBTYPE_PRIO << 4 | (desired == BACKUP_ON ? FLAG_BACKUP : 0);
	if (!insert_option(skb, context, option, LENGTH_PRIO))
		return UNTOUCHED;
	if (state->told[direction] != desired) {
		state->told[direction] = desired;
		state->times[direction] = 0;
		state->arrived &= ~(1 << direction);
	}
	state->times[direction]++;
	state->timestamp[direction] = context->options.timestamps ? context->options.timestamp : 0;
	return ACTED;
}

/* An MP_PRIO of the sender's own says what the rules desire. */
static __always_inline int correct_priority(struct __sk_buff *skb, struct context *context, __u8 desired)
{
	struct option_bytes *flags = new_option();
	struct option_place place = {};

	if (!flags || !find_option(skb, context, OPTION_MPTCP, SUBTYPE_PRIO, &place) || place.length < LENGTH_PRIO)
		return UNTOUCHED;
	if (bpf_skb_load_bytes(skb, place.offset + 2, &flags->byte[0], 1))
		return UNTOUCHED;
	if ((flags->byte[0] & FLAG_BACKUP) == (desired == BACKUP_ON))
		return UNTOUCHED;
	flags->byte[0] ^= FLAG_BACKUP;
	return replace_bytes(skb, context, place.offset + 2, 1, flags) ? ACTED : UNTOUCHED;
}

__noinline int settle_backup(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	struct backup_state *state;
	__u32 direction;
	__u8 desired;

	if (!context || !subflow || context->flags & (TCP_SYN | TCP_RST))
		return UNTOUCHED;
	state = &subflow->backup_state;
	direction = context->direction & 1;
	note_arrival(context, state);
	desired = desired_backup(context, subflow, direction);
	if (!desired)
		return UNTOUCHED;
	if (context->options.types & TYPE_MP_PRIO)
		return state->wanted ? correct_priority(skb, context, desired) : UNTOUCHED;
	return tell(skb, context, state, desired);
}

/* Nothing more to say to either end. */
static __always_inline int backup_is_settled(const struct subflow *subflow)
{
	const struct backup_state *state = &subflow->backup_state;

	return !state->wanted && !state->told[0] && !state->told[1];
}

/* Forgets what was undone. */
static __always_inline void close_backup(const struct context *context, struct subflow *subflow)
{
	struct backup_state *state = &subflow->backup_state;
	__u32 direction;

	if (state->wanted || context->now - state->lifted <= GRACE)
		return;
#pragma clang loop unroll(full)
	for (direction = 0; direction < 2; direction++) {
		__u8 own = subflow->backup >> direction & 1 ? BACKUP_ON : BACKUP_OFF;

		if (state->told[direction] == own && (state->arrived >> direction & 1 || state->times[direction] >= TELL_AT_MOST))
			state->told[direction] = 0;
	}
}

static __always_inline void unsettle_backup(const struct context *context, struct subflow *subflow)
{
	if (!(subflow->bound & ENFORCED_BACKUP))
		subflow->backup_state.wanted = BACKUP_AS_IT_IS;
	subflow->backup_state.lifted = context->now;
}

#endif
