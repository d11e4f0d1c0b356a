//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * ask-peers: the ingress of the host's end of a guest's interface, behind from-guest. What
 * a policy asks of the guest's peers is written into acknowledgements without data that the
 * guest sends anyway, into the room that their options leave: no socket of a guest is
 * within reach, and no other packet changes. docs/transport.md has the format.
 *
 * A program of its own, because those of the endpoint half are near the verifier's limit.
 */
#include "endpoint/edit.h"
#include "request_format.h"

enum {
	BPF_MAP_TYPE_HASH_OF_MAPS = 13,
	MAX_ASKING_GUESTS = 1024,
	MAX_ASKED_CONNECTIONS = 4096, /* of one guest */
};

/* What the peers of a guest are asked for. */
struct asking_guest {
	__u64 written;  /* acknowledgements that ask */
	__u32 revision; /* another one for another content */
	__u32 asked;    /* a bit for each type */
	__u32 number[REQUESTS];
};

struct asked_connection_key {
	struct address guest;
	struct address peer;
	__be16 guest_port;
	__be16 peer_port;
};

struct asked_connection {
	__u64 since;        /* when it began; 0 where that was not seen */
	__u64 round_began;
	__u32 revision;     /* of what the guest's peers are asked for */
	__u32 rounds;
	__u32 due;          /* what is still to be asked in this round */
	__u32 sent;         /* the sequence number behind the guest's SYN */
	__u32 acknowledged; /* and that of the peer's */
	__u16 opening;      /* enum opening */
	/* What is asked of this subflow's peer alone, as the agent says; 0: none. */
	__u16 rate;
	__u16 congestion_control;
	__u16 schedule;
	__u32 pad;
};

enum opening {
	NOT_OPENED = 0, /* by the guest, or data has passed */
	SYN_SENT,
	NO_DATA_YET,
};

/* The map within a map does not describe its types by itself. */
SHARED(struct, asked_connection_key);
SHARED(struct, asked_connection);

/* Each guest has its own: what it forges, or how much it opens, is nobody else's concern. */
struct asked_connections_of_guest {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_ASKED_CONNECTIONS);
	__type(key, struct asked_connection_key);
	__type(value, struct asked_connection);
};

/* By the host's ends of the guests' interfaces. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, MAX_ASKING_GUESTS);
	__type(key, __u32); /* ifindex */
	__array(values, struct asked_connections_of_guest);
} asked_connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_ASKING_GUESTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* ifindex */
	__type(value, struct asking_guest);
} asking_guests SEC(".maps");

static __always_inline void key_of(struct asked_connection_key *key, const struct context *context)
{
	key->guest = context->key.local;
	key->peer = context->key.remote;
	key->guest_port = context->key.local_port;
	key->peer_port = context->key.remote_port;
}

/* It is of use before the peer's first data alone, on connections that the guest begins. */
static __always_inline __u32 initial_window_to_ask(const struct context *context, const struct asking_guest *guest,
						   struct asked_connection *connection)
{
	if (connection->opening == SYN_SENT) {
		connection->acknowledged = context->acknowledgement;
		connection->opening = NO_DATA_YET;
	}
	if (connection->opening == NO_DATA_YET &&
	    (context->sequence != connection->sent || context->acknowledgement != connection->acknowledged))
		connection->opening = NOT_OPENED;
	return connection->opening ? guest->asked & 1U << REQUEST_INITIAL_WINDOW : 0;
}

static __always_inline __u32 to_ask(const struct asking_guest *guest, const struct asked_connection *connection)
{
	__u32 due = guest->asked & ~(1U << REQUEST_INITIAL_WINDOW);

	if (connection->rate)
		due |= 1U << REQUEST_RATE;
	if (connection->congestion_control)
		due |= 1U << REQUEST_CONGESTION_CONTROL;
	if (connection->schedule)
		due |= 1U << REQUEST_SCHEDULE;
	return due;
}

/* What is said of one subflow goes before what is said of all. */
static __always_inline __u32 number_to_ask(const struct asking_guest *guest, const struct asked_connection *connection,
					   __u32 type)
{
	if (type == REQUEST_RATE)
		return connection->rate;
	if (type == REQUEST_CONGESTION_CONTROL && connection->congestion_control)
		return connection->congestion_control;
	if (type == REQUEST_SCHEDULE && connection->schedule)
		return connection->schedule;
	return guest->number[type];
}

/* What the agent said of it belongs to what was asked for before. */
static __always_inline void follow(const struct asking_guest *guest, struct asked_connection *connection)
{
	connection->revision = guest->revision;
	connection->rounds = 0;
	connection->due = 0;
	connection->rate = 0;
	connection->congestion_control = 0;
	connection->schedule = 0;
}

/*
 * Once a second all is due again, from when the connection has lasted, and another policy's at
 * once.
 */
static __always_inline void begin_round(const struct asking_guest *guest, struct asked_connection *connection)
{
	__u64 now = bpf_ktime_get_coarse_ns();

	if (unlikely(connection->revision != guest->revision))
		follow(guest, connection);
	if (connection->due || now - connection->since < ASKS_AFTER ||
	    (connection->rounds >= ROUNDS_AT_ONCE && now - connection->round_began < ROUND_AFTER))
		return;
	connection->due = to_ask(guest, connection);
	connection->round_began = now;
	if (connection->rounds < ROUNDS_AT_ONCE)
		connection->rounds++;
}

static __always_inline void put(struct option_bytes *option, __u32 at, __be32 word)
{
	if (at < OPTION_SPACE / REQUEST_BYTES)
		((__be32 *)option)[at] = word;
}

/* The options of a portion of what is due; they are whole words. */
static __always_inline void compose(const struct asking_guest *guest, const struct asked_connection *connection,
				    struct portion portion, struct option_bytes *option)
{
	__u32 words = 0, turn;

#pragma unroll
	for (turn = REQUEST_INITIAL_WINDOW; turn < REQUESTS; turn++) {
		__u32 type = in_turn(turn);

		if (!(connection->due & 1U << type) || words >= portion.words)
			continue;
		words++;
		put(option, words, request_word(type, number_to_ask(guest, connection, type)));
	}
	if (words)
		put(option, 0, option_head(words++));
	if (portion.user_timeout)
		put(option, words, user_timeout_word(guest->number[REQUEST_USER_TIMEOUT]));
}

/* A guest that asks, or makes an experiment of its own, is left to it. */
static __always_inline int asks_itself(struct __sk_buff *skb, struct context *context)
{
	struct option_place place = {};

	return look_for_option(skb, context, OPTION_EXPERIMENT, ANY_SUBTYPE, &place) ||
	       look_for_option(skb, context, OPTION_USER_TIMEOUT, ANY_SUBTYPE, &place);
}

/* Asks as much as there is room for; what there is none for stays due. */
__noinline int ask(struct __sk_buff *skb, struct context *context, struct asking_guest *guest,
		   struct asked_connection *connection)
{
	struct option_bytes *option;
	struct portion portion;
	__u32 timeout, words;

	if (!context || !guest || !connection)
		return 0;
	begin_round(guest, connection);
	connection->due &= ~(1U << REQUEST_INITIAL_WINDOW);
	connection->due |= initial_window_to_ask(context, guest, connection);
	if (!connection->due || context->options_length >= OPTION_SPACE)
		return 0;
	timeout = connection->due >> REQUEST_USER_TIMEOUT & 1;
	words = __builtin_popcount(connection->due & ~(1U << REQUEST_USER_TIMEOUT));
	portion = portion_of(words, timeout, OPTION_SPACE - context->options_length);
	if ((!portion.words && !portion.user_timeout) || asks_itself(skb, context))
		return 0;
	option = new_option();
	if (!option)
		return 0;
	compose(guest, connection, portion, option);
	if (!insert_option(skb, context, option, bytes_of(portion.words, portion.user_timeout)))
		return 0;
	connection->due = due_after(connection->due, portion);
	__sync_fetch_and_add(&guest->written, 1);
	return 1;
}

/* A connection or subflow that begins: its end of the guest's is in the SYN, or in the answer to one. */
static __always_inline void begin(void *connections, const struct context *context, const struct asking_guest *guest)
{
	struct asked_connection connection = { .revision = guest->revision, .since = bpf_ktime_get_coarse_ns() };
	struct asked_connection_key key;

	if (asks(context)) {
		connection.opening = SYN_SENT;
		connection.sent = context->sequence + 1;
	}
	key_of(&key, context);
	bpf_map_update_elem(connections, &key, &connection, BPF_ANY);
}

/* One that was there before is asked at once. */
static __always_inline struct asked_connection *connection_of(void *connections, const struct context *context,
							      const struct asking_guest *guest)
{
	struct asked_connection *known, connection = { .revision = guest->revision };
	struct asked_connection_key key;

	key_of(&key, context);
	known = bpf_map_lookup_elem(connections, &key);
	if (likely(known) || bpf_map_update_elem(connections, &key, &connection, BPF_NOEXIST))
		return known;
	return bpf_map_lookup_elem(connections, &key);
}

SEC("tc")
int ask_peers(struct __sk_buff *skb)
{
	struct context context = { .direction = FROM_ENDPOINT };
	struct asked_connection *connection;
	struct asking_guest *guest;
	__u32 index = skb->ifindex;
	void *connections;

	guest = bpf_map_lookup_elem(&asking_guests, &index);
	connections = bpf_map_lookup_elem(&asked_connections, &index);
	if (!guest || !connections || !parse_in(skb, &context, FROM_ENDPOINT))
		return TCX_NEXT;
	if (unlikely(context.flags & TCP_SYN)) {
		begin(connections, &context, guest);
		return TCX_NEXT;
	}
	if (!is_pure_ack(&context))
		return TCX_NEXT;
	connection = connection_of(connections, &context, guest);
	if (connection)
		ask(skb, &context, guest, connection);
	return TCX_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
