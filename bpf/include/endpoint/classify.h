/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which subflow and which connection a packet belongs to, and which rules of the
 * chain concern them.
 *
 * A connection is known from its first answer on: the responder's token is the
 * hash of the key in the SYN/ACK's MP_CAPABLE, the initiator's that of the other
 * key in the third segment; MP_JOIN names the token itself. Keys are hashed where
 * they are read and kept nowhere.
 *
 * Subflows older than the agent begin in the middle, without token, window scale
 * and beginning, unless the agent seeded them from the pod's sockets.
 */
#ifndef BRAID_CLASSIFY_H
#define BRAID_CLASSIFY_H

#include "record.h"
#include "select.h"

enum {
	HANDSHAKE_PACKETS = 8, /* then a key that was not seen will not come */
	LENGTH_CAPABLE_BOTH_KEYS = 20,
	KEY_AT = 4,
	KEY_LENGTH = 8,
};

static const struct subflow fresh_subflow = { .path = PATH_UNKNOWN };

/* Subflows that were judged by what they were must be judged again. */
static __always_inline void invalidate_bypass(struct attachment *attachment)
{
	__sync_fetch_and_add(&attachment->generation, 1);
}

static __always_inline void classify_again(struct subflow *subflow)
{
	subflow->word = 0;
}

static __always_inline struct mptcp_connection *connection_of(__u32 endpoint, __u32 token)
{
	struct mptcp_connection_key key = { endpoint, token };
	struct mptcp_connection *connection = bpf_map_lookup_elem(&mptcp_connections, &key);

	if (!connection || connection->token == token)
		return connection;
	key.token = connection->token;
	return bpf_map_lookup_elem(&mptcp_connections, &key);
}

/* One function for all: a connection is a hundred bytes of stack. */
__noinline int begin_connection(struct context *context, __u32 key_token, __u32 token, __u32 role)
{
	struct mptcp_connection_key key;
	struct mptcp_connection begun = {};

	if (!context)
		return 0;
	key.endpoint = context->key.endpoint;
	key.token = key_token;
	begun.token = token;
	begun.role = role;
	begun.first_seen = context->now;
	return !bpf_map_update_elem(&mptcp_connections, &key, &begun, BPF_NOEXIST);
}

/* Hashes the key of MP_CAPABLE that begins `at` bytes into the option. */
__noinline int hash_key(struct __sk_buff *skb, struct context *context, __u32 at, struct key_hash *hash)
{
	__u32 key[KEY_LENGTH / 4];

	if (!context || !hash)
		return 0;
	if (bpf_skb_load_bytes(skb, context->options.mptcp + at, key, sizeof(key)))
		return 0;
	sha256_of_key(bpf_ntohl(key[0]), bpf_ntohl(key[1]), hash);
	return 1;
}

static __always_inline void know_token(struct context *context, struct subflow *subflow, __u32 token)
{
	struct mptcp_connection *connection;

	if (!token || subflow->token)
		return;
	subflow->token = token;
	classify_again(subflow);
	begin_connection(context, token, token, subflow->role);
	connection = connection_of(context->key.endpoint, token);
	if (connection)
		__sync_fetch_and_add(&connection->subflows, 1);
}

/* What the sender of this direction begins its data with: a number after that of its SYN. */
static __always_inline void know_data_sequence(struct mptcp_connection *connection, const struct key_hash *hash,
					       __u32 direction)
{
	connection->initial_data_sequence[direction & 1] = ((__u64)hash->last[0] << 32 | hash->last[1]) + 1;
	connection->sequence_known |= 1 << (direction & 1);
}

/* The responder's key; direction is that of what the responder sends. */
static __always_inline void know_responder(struct context *context, struct subflow *subflow,
					   const struct key_hash *hash, __u32 direction)
{
	struct mptcp_connection *connection;

	know_token(context, subflow, hash->first);
	connection = connection_of(context->key.endpoint, hash->first);
	if (connection)
		know_data_sequence(connection, hash, direction);
}

static __always_inline void know_initiator(struct context *context, struct subflow *subflow,
					   const struct key_hash *hash, __u32 direction)
{
	struct mptcp_connection *connection = connection_of(context->key.endpoint, subflow->token);

	if (subflow->initiator_token == hash->first)
		return;
	subflow->initiator_token = hash->first;
	classify_again(subflow);
	if (connection) {
		connection->initiator_token = hash->first;
		know_data_sequence(connection, hash, direction);
	}
	begin_connection(context, hash->first, subflow->token, subflow->role);
}

/* MP_JOIN in a SYN names the token of the end that receives it. */
static __always_inline void know_join(struct context *context, struct subflow *subflow)
{
	struct mptcp_connection *connection;
	__u32 token = context->options.token;

	subflow->known |= KNOWN_MPTCP | KNOWN_JOIN;
	connection = connection_of(context->key.endpoint, token);
	know_token(context, subflow, connection ? connection->token : token);
	if (connection)
		subflow->initiator_token = connection->initiator_token;
}

static __always_inline void note_backup(struct subflow *subflow, const struct context *context)
{
	__u8 bit = 1 << (context->direction & 1);

	if (context->options.types & (TYPE_MP_PRIO | (context->flags & TCP_SYN ? TYPE_MP_JOIN : 0)))
		subflow->backup = context->options.backup ? subflow->backup | bit : subflow->backup & ~bit;
}

/* The handshake is over: with what is known now, the subflow is classified for good. */
static __always_inline void end_handshake(struct subflow *subflow)
{
	if (subflow->known & KNOWN_HANDSHAKE)
		return;
	subflow->known |= KNOWN_HANDSHAKE;
	classify_again(subflow);
}

static __always_inline void learn_from_syn(struct context *context, struct subflow *subflow)
{
	struct traffic *traffic = &subflow->traffic[context->direction & 1];

	subflow->role = context->direction == FROM_ENDPOINT ? ENDPOINT_INITIATED : ENDPOINT_ANSWERED;
	subflow->syn_sequence = context->sequence;
	subflow->known |= KNOWN_SYN;
	traffic->window_scale = context->options.window_scale;
	if (context->options.types & TYPE_MP_JOIN)
		know_join(context, subflow);
	else if (context->options.types & TYPE_MP_CAPABLE)
		subflow->known |= KNOWN_MPTCP;
}

/* Windows are scaled only if both SYNs say how. */
static __always_inline void learn_window_scale(struct context *context, struct subflow *subflow)
{
	struct traffic *traffic = &subflow->traffic[context->direction & 1];
	struct traffic *other = &subflow->traffic[~context->direction & 1];
	__u8 scale = context->options.window_scale;

	int both = scale && other->window_scale;

	if (!(subflow->known & KNOWN_SYN))
		return;
	traffic->window_scale = both ? scale : 1;
	if (!both)
		other->window_scale = 1;
}

static __always_inline void learn_from_answer(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	struct key_hash hash = {};

	if (!subflow->role)
		subflow->role = context->direction == FROM_ENDPOINT ? ENDPOINT_ANSWERED : ENDPOINT_INITIATED;
	learn_window_scale(context, subflow);
	subflow->known |= KNOWN_SYN_ACK;
	if (context->options.types & TYPE_MP_JOIN) {
		subflow->known |= KNOWN_ANSWERED | KNOWN_MPTCP | KNOWN_JOIN;
		end_handshake(subflow);
	} else if ((context->options.types & TYPE_MP_CAPABLE) && context->options.mptcp_length == LENGTH_CAPABLE_SYN_ACK &&
		   !(subflow->known & KNOWN_JOIN)) {
		subflow->known |= KNOWN_ANSWERED | KNOWN_MPTCP;
		if (hash_key(skb, context, KEY_AT, &hash))
			know_responder(context, subflow, &hash, context->direction);
	} else {
		end_handshake(subflow);
	}
}

/* Whether the key in the SYN/ACK was seen: a hash takes longer than all else that a packet needs. */
static __always_inline int knows_responder(const struct context *context, const struct subflow *subflow)
{
	struct mptcp_connection *connection = subflow->token ? connection_of(context->key.endpoint, subflow->token) : 0;

	return connection && (connection->sequence_known >> (~context->direction & 1) & 1);
}

/* The third segment, or the first with data: the sender's key and the receiver's. */
static __always_inline void learn_from_both_keys(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	struct key_hash hash = {};

	if (!subflow->role)
		subflow->role = context->direction == FROM_ENDPOINT ? ENDPOINT_INITIATED : ENDPOINT_ANSWERED;
	subflow->known |= KNOWN_ANSWERED | KNOWN_MPTCP;
	if (!knows_responder(context, subflow) && hash_key(skb, context, KEY_AT + KEY_LENGTH, &hash))
		know_responder(context, subflow, &hash, !context->direction);
	if (hash_key(skb, context, KEY_AT, &hash))
		know_initiator(context, subflow, &hash, context->direction);
	end_handshake(subflow);
}

/* Of the SYNs and the first packets after them, whose options are read. */
__noinline int learn(struct __sk_buff *skb, struct context *context, struct subflow *subflow)
{
	if (!context || !subflow)
		return 0;
	note_backup(subflow, context);
	if (asks(context)) {
		learn_from_syn(context, subflow);
		return 0;
	}
	if (answers(context)) {
		learn_from_answer(skb, context, subflow);
		return 0;
	}
	if ((context->options.types & TYPE_MP_CAPABLE) && context->options.mptcp_length >= LENGTH_CAPABLE_BOTH_KEYS)
		learn_from_both_keys(skb, context, subflow);
	else if (++subflow->handshake_packets >= HANDSHAKE_PACKETS)
		end_handshake(subflow);
	return 0;
}

/* The path is that of the NIC by which the peer's packets come in, in a tunnel or not. */
__noinline int learn_path(struct context *context, struct subflow *subflow, __u32 ingress)
{
	struct paths *paths;
	__u32 zero = 0, path;

	if (!context || !subflow)
		return 0;
	subflow->ingress = ingress;
	subflow->path = PATH_UNKNOWN;
	classify_again(subflow);
	if (ingress & ARRIVAL_BY_TUNNEL) {
		subflow->path = ingress & (ARRIVAL_PATH >> ARRIVAL_PATH_SHIFT);
		return 0;
	}
	paths = bpf_map_lookup_elem(&path_interfaces, &zero);
	if (!paths)
		return 0;
	for (path = 0; path < PATHS; path++)
		if (paths->interface[path] == ingress)
			subflow->path = path;
	return 0;
}

/* What a rule is for one direction of the subflow, as bits: 1 sure, 2 maybe. */
enum {
	RULE_SURE = 1,
	RULE_MAYBE = 2,
};

__noinline int judge(struct chain *chain, struct context *context, struct subflow *subflow, __u32 index,
		     __u32 direction)
{
	struct rule *rule;

	if (!chain || !context || !subflow || index >= MAX_RULES)
		return 0;
	rule = &chain->rule[index];
	if (!(rule->directions >> (direction & 1) & 1))
		return 0;
	if (rule->first_selector == MATCHED)
		return RULE_SURE;
	if (matches(chain, context, subflow, rule->first_selector, 2 * ASSUME_FALSE + (direction & 1)))
		return RULE_SURE;
	return matches(chain, context, subflow, rule->first_selector, 2 * ASSUME_TRUE + (direction & 1)) ? RULE_MAYBE : 0;
}

static __always_inline void remember_question(struct chain *chain, struct context *context, struct subflow *subflow,
					      __u32 index, __u32 direction)
{
	if (index < REMEMBERED_RULES)
		subflow->begin[direction & 1][index] =
			first_in_question(chain, context, subflow, chain->rule[index].first_selector, direction);
}

/* What a judgement adds to the memo: a bit of each word, and what the rule needs. */
struct memo {
	__u64 sure;
	__u64 maybe;
	__u32 needs;
};

/*
 * Without a branch: the verifier of Linux 6.1 would follow both ways of each turn with
 * every word that may have come of those before.
 */
static __always_inline void note_judgement(struct memo *memo, const struct rule *rule, __u32 index, __u64 judged)
{
	barrier_var(judged);
	memo->sure |= (judged & RULE_SURE) << index;
	memo->maybe |= (judged / RULE_MAYBE & 1) << index;
	memo->needs |= rule->needs & -(__u32)is_any(judged);
}

/* The memo's part for one direction. */
__noinline int classify_direction(struct chain *chain, struct context *context, struct subflow *subflow, __u32 direction)
{
	struct memo memo = {};
	__u32 index;

	if (!chain || !context || !subflow)
		return 0;
	direction &= 1;
	for (index = 0; index < MAX_RULES; index++) {
		__u32 judged;

		if (index >= chain->rules)
			break;
		judged = judge(chain, context, subflow, index, direction);
		if (judged & RULE_MAYBE)
			remember_question(chain, context, subflow, index, direction);
		note_judgement(&memo, &chain->rule[index], index, judged);
	}
	subflow->sure[direction] = memo.sure;
	subflow->maybe[direction] = memo.maybe;
	subflow->needs[direction] = memo.needs;
	return 0;
}

#endif
