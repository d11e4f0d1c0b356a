/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a packet adds to the record of its MPTCP connection. */
#ifndef BRAID_CONNECTION_H
#define BRAID_CONNECTION_H

#include "classify.h"

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

#endif
