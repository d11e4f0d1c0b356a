/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Events for the agent: once for each connection and subflow that a rule reports,
 * as soon as its token and path are known, and at a reported subflow's end.
 */
#ifndef BRAID_REPORT_H
#define BRAID_REPORT_H

#include "classify.h"

enum event_rule {
	NO_RULE = 0xff, /* of the present chain */
};

static __noinline int fill_event(struct event *event, const struct context *context, const struct subflow *subflow,
				 __u32 type)
{
	event->time = context->now;
	event->key = context->key;
	event->token = subflow->token;
	event->initiator_token = subflow->initiator_token;
	event->type = type;
	event->path = subflow->path;
	event->role = subflow->role;
	event->direction = context->direction;
	event->rule = subflow->due_rule;
	event->sent[FROM_ENDPOINT] = subflow->traffic[FROM_ENDPOINT].position;
	event->sent[TO_ENDPOINT] = subflow->traffic[TO_ENDPOINT].position;
	return 0;
}

/* A full ring loses the event; the agent sees the subflow in the map all the same. */
__noinline int report_event(struct context *context, struct subflow *subflow, __u32 type)
{
	struct event *event;

	if (!context || !subflow)
		return 0;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event)
		return 0;
	fill_event(event, context, subflow, type);
	bpf_ringbuf_submit(event, 0);
	return 1;
}

/* True for the first subflow of the connection that asks. */
static __always_inline int is_first_report(const struct context *context, const struct subflow *subflow)
{
	struct mptcp_connection *connection = connection_of(context->key.endpoint, subflow->token);

	return connection && !__sync_lock_test_and_set(&connection->reported, 1);
}

/* A connection without a token is none, or one that nobody can name. */
__noinline int report_due(struct context *context, struct subflow *subflow)
{
	__u8 due;

	if (!context || !subflow)
		return 0;
	due = subflow->due;
	subflow->due = 0;
	if ((due & DUE_CONNECTION) && subflow->token && is_first_report(context, subflow))
		report_event(context, subflow, EVENT_CONNECTION);
	if (due & DUE_SUBFLOW)
		report_event(context, subflow, EVENT_SUBFLOW);
	return 0;
}

/* Whether all is known that will be, or the packet is the last one: a refused SYN. */
static __always_inline int is_report_ready(const struct subflow *subflow, int is_dropped)
{
	return is_dropped || ((subflow->known & KNOWN_HANDSHAKE) && subflow->ingress) || subflow->ended;
}

static __always_inline void ask_for_report(struct subflow *subflow, __u8 due, __u32 rule)
{
	due &= ~subflow->reported;
	subflow->reported |= due;
	subflow->due |= due;
	if (due || subflow->due_rule == NO_RULE)
		subflow->due_rule = rule;
}

/* The rules are others now, and what they ask for is asked for again. */
static __always_inline void forget_asking_rule(struct subflow *subflow)
{
	subflow->due_rule = NO_RULE;
}

static __always_inline int has_ended(__u8 ended)
{
	return (ended & ENDED_RESET) || (ended & (ENDED_FIN_FROM | ENDED_FIN_TO)) == (ENDED_FIN_FROM | ENDED_FIN_TO);
}

static __always_inline void note_end(struct context *context, struct subflow *subflow)
{
	if (likely(!(context->flags & (TCP_RST | TCP_FIN))))
		return;
	if (context->flags & TCP_RST)
		subflow->ended |= ENDED_RESET;
	if (context->flags & TCP_FIN)
		subflow->ended |= 1 << (context->direction & 1);
	if (!has_ended(subflow->ended) || !(subflow->reported & REPORTED_SUBFLOW) || (subflow->reported & REPORTED_END))
		return;
	subflow->reported |= REPORTED_END;
	if (subflow->due)
		report_due(context, subflow);
	report_event(context, subflow, EVENT_SUBFLOW_END);
}

#endif
