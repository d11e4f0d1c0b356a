//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Gives the TCP sockets of pods what their policies say of transport. The first program
 * sees every socket of the machine when it connects and when it becomes established. The
 * second one goes over the sockets that exist, in one network namespace, so that a change
 * reaches these too, and puts back what is not wanted any more. What peers ask for goes over
 * what a policy gives (hear.h).
 */
#include "tunnel.h"
#include "usual.h"

static __always_inline void listens(void *socket, struct settings *settings)
{
	__u32 value = settings->value[SETTING_RECEIVE_BUFFER];

	/* The window's scale is in the SYN/ACK; connections inherit the rest. */
	if (settings->given & 1 << SETTING_RECEIVE_BUFFER)
		bpf_setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &value, sizeof(value));
}

static __always_inline int is_of_interest(struct bpf_sock_ops *ops)
{
	__u32 op = ops->op;

	return op == BPF_SOCK_OPS_RTT_CB || op == BPF_SOCK_OPS_TCP_CONNECT_CB || op == BPF_SOCK_OPS_TCP_LISTEN_CB ||
	       op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB ||
	       op == BPF_SOCK_OPS_WRITE_HDR_OPT_CB || (op == BPF_SOCK_OPS_PARSE_HDR_OPT_CB && asks(ops)) ||
	       (op == BPF_SOCK_OPS_HDR_OPT_LEN_CB && (is_pure_ack(ops) || is_answer(ops) || is_given_as_usual(callbacks_on(ops))));
}

static __always_inline int is_established(__u32 op)
{
	return op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB;
}

static __always_inline struct own *own_of(void *sk)
{
	struct own *own = bpf_sk_storage_get(&transport_sockets, sk, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (own && !own->since)
		own->since = bpf_ktime_get_ns();
	return own;
}

static __always_inline int has_settled(const struct own *own, const struct settings *settings)
{
	return own->revision == settings->revision;
}

/* Packets come often, and calls for their options with them: these look on when they must. */
static __always_inline int may_wait(__u32 op, const struct own *own, int changed)
{
	return (op == BPF_SOCK_OPS_HDR_OPT_LEN_CB || op == BPF_SOCK_OPS_WRITE_HDR_OPT_CB || op == BPF_SOCK_OPS_PARSE_HDR_OPT_CB) &&
	       !changed && bpf_ktime_get_ns() - own->since < SETTLED_AFTER;
}

static __always_inline void note_settled(struct own *own, const struct settings *settings)
{
	if (bpf_ktime_get_ns() - own->since >= SETTLED_AFTER)
		own->revision = settings->revision;
}

/* What the socket gets in all: in memory of its own, of which the verifier follows no values. */
static __always_inline struct settings *all_settings(struct settings *settings, struct conversation *with)
{
	if (!with || !with->accepted)
		return settings;
	with->all = *settings;
	with->all.refused = 0;
	add_granted(&with->all, with);
	return &with->all;
}

static __always_inline void note_failed(struct settings *settings, struct exchange *exchange, struct conversation *with)
{
	__u32 failed, granted;

	if (!with || !with->accepted)
		return;
	failed = with->all.refused;
	granted = settings_of(with->accepted);
	if (failed & ~granted)
		settings->refused |= failed & ~granted;
	if (exchange && failed & granted)
		exchange->failed |= requests_of(failed & granted);
}

static __always_inline int has_lasted(const struct own *own)
{
	return bpf_ktime_get_ns() - own->since >= SETTLED_AFTER;
}

/* A socket that was there before has its callback of round trips from the iterator, for lapse(). */
static __always_inline void set_callbacks(struct bpf_sock_ops *ops, const struct exchange *exchange,
					  struct conversation *with, const struct own *own)
{
	__u32 wanted = callbacks_of(exchange, with, has_lasted(own), is_before_data(ops));

	if (wanted)
		wanted |= with->flags & BPF_SOCK_OPS_RTT_CB_FLAG;
	if (wanted != with->flags)
		bpf_sock_ops_cb_flags_set(ops, changed_callbacks(with, ops->bpf_sock_ops_cb_flags, wanted));
}

/* Asks the peer, and hears what it asks for. Returns 1 where the socket is to get something else. */
__noinline int converse(struct bpf_sock_ops *ops, struct exchange *exchange, struct conversation *with, struct own *own)
{
	struct address local, remote;
	struct bpf_sock *sk = ops->sk;
	__u32 op = ops->op;
	int changed = 0;

	if (!sk || !exchange || !with || !own)
		return 0;
	if (with->revision != exchange->revision) {
		read_addresses(ops, &local, &remote);
		follow(ops, sk, exchange, with, &remote, own);
		changed = 1;
	}
	if (op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB && exchange->flags & EXCHANGE_CREDITS)
		with->flags |= BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG; /* its listener's */
	set_callbacks(ops, exchange, with, own);
	if (op == BPF_SOCK_OPS_HDR_OPT_LEN_CB)
		reserve_room(ops, exchange, with, own);
	else if (op == BPF_SOCK_OPS_WRITE_HDR_OPT_CB)
		write_options(ops, exchange, with);
	else if (op == BPF_SOCK_OPS_RTT_CB)
		lapse(ops, sk, with, own);
	else if ((with->accepts || with->credits) && (op == BPF_SOCK_OPS_PARSE_HDR_OPT_CB || is_established(op)))
		changed |= hear(ops, exchange, with, own);
	return changed;
}

/* Nothing is exchanged any more. */
__noinline int fall_silent(struct bpf_sock_ops *ops, struct conversation *with, struct own *own)
{
	struct bpf_sock *sk = ops->sk;

	if (!sk || !with || !own || !(with->revision || with->flags))
		return 0;
	withdraw(ops, sk, with, own);
	set_callbacks(ops, 0, with, own);
	with->revision = 0;
	return 0;
}

__noinline int settle_called(struct bpf_sock_ops *ops, struct own *own, struct settings *all)
{
	if (own && all)
		settle(ops, own, all);
	return 0;
}

static __always_inline struct exchange *exchange_of(const struct settings *settings, __u64 *netns)
{
	if (!(settings->given & 1U << SETTING_EXCHANGE))
		return 0;
	return bpf_map_lookup_elem(&transport_exchanges, netns);
}

static __always_inline struct conversation *conversation_of(void *sk, int begins)
{
	__u64 create = begins ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0;

	barrier_var(create);
	return bpf_sk_storage_get(&transport_conversations, sk, 0, create);
}

/* That of a connection, which takes over what is known of it; begins: it is to have one. */
static __always_inline struct conversation *take_up(void *sk, const struct exchange *exchange, struct own *own, int begins)
{
	struct conversation *with = conversation_of(sk, exchange ? begins : own->set & 1U << OWN_WRITES);

	if (!with)
		return 0;
	if (own->set & 1U << OWN_WRITES)
		with->flags |= BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	with->initiator |= own->set >> OWN_INITIATOR & 1;
	own->set &= ~(1U << OWN_WRITES | 1U << OWN_ASKS_ONCE);
	return with;
}

/* Connections inherit the listener's callbacks. */
static __always_inline void answers(struct bpf_sock_ops *ops, struct bpf_sock *sk, const struct exchange *exchange)
{
	struct conversation *with;
	__u32 wanted = 0;

	if (exchange && exchange->flags & EXCHANGE_CREDITS)
		wanted = BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	with = conversation_of(sk, exchange != 0);
	if (with && wanted != with->flags)
		bpf_sock_ops_cb_flags_set(ops, changed_callbacks(with, ops->bpf_sock_ops_cb_flags, wanted));
}

/* With credits a connection converses from the first segment on, else once it has lasted. */
static __always_inline int converses(const struct exchange *exchange, const struct own *own)
{
	return exchange && (exchange->flags & EXCHANGE_CREDITS || has_lasted(own));
}

/* A socket's own note; 0 where it goes on with none. begins: it has to converse at once. */
static __always_inline struct own *note_of(struct bpf_sock_ops *ops, struct bpf_sock *sk, struct settings *settings,
					   struct exchange *exchange, __u64 *netns, int *begins)
{
	__u32 op = ops->op;
	struct own *own;

	if (op == BPF_SOCK_OPS_TCP_CONNECT_CB && callbacks_on(ops) & GIVEN_AS_USUAL)
		return note_lasting(ops, sk, *netns, exchange); /* it has failed to connect before */
	if (op == BPF_SOCK_OPS_TCP_CONNECT_CB || is_established(op)) {
		if (starts_as_usual(ops, settings, exchange, netns, begins))
			return 0;
		if (*begins)
			return note_lasting(ops, sk, *netns, exchange);
	} else if (is_given_as_usual(callbacks_on(ops))) {
		return goes_on_as_usual(ops, sk, exchange) ? 0 : note_lasting(ops, sk, *netns, exchange);
	}
	own = own_of(sk);
	if (own && is_established(op))
		*begins = begin(ops, settings, exchange, own);
	return own;
}

SEC("sockops")
int set_transport(struct bpf_sock_ops *ops)
{
	struct conversation *with;
	struct settings *settings;
	struct exchange *exchange;
	struct bpf_sock *sk;
	struct own *own;
	__u64 cookie;
	__u32 op = ops->op;
	int changed = 0, begins = 0;

	if (!is_of_interest(ops))
		return 1;
	sk = ops->sk;
	if (sk && (is_given_as_usual(callbacks_on(ops)) ? rests(ops, sk) : is_done_young(ops, sk)))
		return 1;
	cookie = bpf_get_netns_cookie(ops);
	settings = bpf_map_lookup_elem(&transport_settings, &cookie);
	if (!settings)
		return 1;
	exchange = exchange_of(settings, &cookie);
	if (!sk) {
		if (exchange && is_answer(ops))
			answer_with_credit(ops, exchange);
		return 1;
	}
	if (op == BPF_SOCK_OPS_TCP_LISTEN_CB) {
		listens(ops, settings);
		answers(ops, sk, exchange);
		return 1;
	}
	own = note_of(ops, sk, settings, exchange, &cookie, &begins);
	if (!own)
		return 1;
	with = take_up(sk, exchange, own, begins || converses(exchange, own));
	if (with && exchange)
		changed = converse(ops, exchange, with, own);
	else if (with)
		fall_silent(ops, with, own);
	if (has_settled(own, settings) || may_wait(op, own, changed))
		return 1;
	settle_called(ops, own, all_settings(settings, with));
	note_failed(settings, exchange, with);
	note_settled(own, settings);
	return 1;
}

/* Linux 6.12 and later let callbacks of sockets be changed that were there before. */
static __always_inline void set_callbacks_of(void *socket, const struct exchange *exchange, struct conversation *with)
{
	__u32 wanted = callbacks_of(exchange, with, 1, 0), flags = 0;

	if (exchange && wanted)
		wanted |= BPF_SOCK_OPS_RTT_CB_FLAG;
	if (wanted == with->flags ||
	    bpf_getsockopt(socket, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags)))
		return;
	flags = changed_callbacks(with, flags, wanted);
	bpf_setsockopt(socket, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags));
}

/*
 * The note of a socket that is there; one that was given what is usual has it from now on. Before
 * Linux 6.12 the mark stays: who has a note is not looked at for it.
 */
static __always_inline struct own *existing_note(struct tcp_sock *socket, __u64 netns, int is_connecting)
{
	__u32 flags = socket->bpf_sock_ops_cb_flags;
	struct own *own = bpf_sk_storage_get(&transport_sockets, socket, 0, 0);

	if (own || !(is_given_as_usual(flags) || (flags & GIVEN_AS_USUAL && is_connecting)))
		return own;
	own = note_usual(socket, netns);
	if (own && flags & MAY_ASK && flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG)
		own->set |= 1U << OWN_WRITES;
	flags &= ~GIVEN_AS_USUAL;
	bpf_setsockopt(socket, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags));
	return own;
}

/* Puts a socket back that gets nothing any more. */
static __always_inline void release(struct sock_common *common, struct tcp_sock *socket, __u64 netns)
{
	struct own *own = existing_note(socket, netns, common->skc_state == TCP_SYN_SENT);
	struct conversation *with;

	if (!own)
		return;
	with = take_up(socket, 0, own, 0);
	if (with) {
		withdraw(socket, socket, with, own);
		set_callbacks_of(socket, 0, with);
		bpf_sk_storage_delete(&transport_conversations, socket);
	}
	settle(socket, own, 0);
	own->revision = 0;
	if (!(socket->bpf_sock_ops_cb_flags & GIVEN_AS_USUAL))
		bpf_sk_storage_delete(&transport_sockets, socket);
}

/* A listener, of a namespace with an exchange or without. */
static __always_inline void set_listener(void *socket, const struct exchange *exchange)
{
	struct conversation *with = conversation_of(socket, exchange != 0);
	__u32 wanted = 0, flags = 0;

	if (exchange && exchange->flags & EXCHANGE_CREDITS)
		wanted = BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	if (!with || wanted == with->flags ||
	    bpf_getsockopt(socket, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags)))
		return;
	flags = changed_callbacks(with, flags, wanted);
	bpf_setsockopt(socket, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags));
}

/* A socket of a namespace with settings. */
static __always_inline void set_one(struct sock_common *common, struct tcp_sock *socket, struct settings *settings, __u64 netns)
{
	struct exchange *exchange = exchange_of(settings, &netns);
	struct own *own = existing_note(socket, netns, common->skc_state == TCP_SYN_SENT);
	struct conversation *with;
	struct address peer = {};

	if (!own)
		own = own_of(socket);
	if (!own)
		return;
	with = take_up(socket, exchange, own, 1);
	if (with && exchange && with->revision != exchange->revision) {
		read_remote_address(common, &peer);
		follow(socket, socket, exchange, with, &peer, own);
	} else if (with && !exchange && with->revision) {
		withdraw(socket, socket, with, own);
		with->revision = 0;
	}
	if (with)
		set_callbacks_of(socket, exchange, with);
	if (has_settled(own, settings))
		return;
	settle(socket, own, all_settings(settings, with));
	note_failed(settings, exchange, with);
	note_settled(own, settings);
}

SEC("iter/tcp")
int set_existing(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	struct settings *settings;
	struct tcp_sock *socket;
	__u64 cookie;

	if (!common)
		return 0;
	socket = bpf_skc_to_tcp_sock(common);
	if (!socket)
		return 0;
	cookie = common->skc_net.net->net_cookie;
	settings = bpf_map_lookup_elem(&transport_settings, &cookie);
	if (common->skc_state == TCP_LISTEN)
		set_listener(socket, settings ? exchange_of(settings, &cookie) : 0);
	else if (settings)
		set_one(common, socket, settings, cookie);
	else
		release(common, socket, cookie);
	return 0;
}

/* What a tunnel adds to a packet, which may be several segments of GSO. */
static __always_inline __u32 around(const struct __sk_buff *skb, const struct packet *packet)
{
	__u32 segments = skb->gso_segs;

	return (packet->network - sizeof(struct ethhdr)) * (segments ? segments : 1);
}

/* A packet to a receiver: notes by which path its flow comes in, and returns what is known of it. */
static __always_inline const struct credit_flow *note_flow(const struct packet *packet, __u32 path)
{
	struct credit_flow_key key = {};
	struct credit_flow *flow, new = { .path = path };

	key.local = packet->destination;
	key.remote = packet->source;
	key.local_port = packet->destination_port;
	key.remote_port = packet->source_port;
	flow = bpf_map_lookup_elem(&credit_flows, &key);
	if (!flow)
		bpf_map_update_elem(&credit_flows, &key, &new, BPF_NOEXIST);
	else if (flow->path != path)
		flow->path = path;
	return flow;
}

/* Whether it is a segment of TCP, in one of the node's tunnels or in none. */
static __always_inline int find_segment(struct __sk_buff *skb, struct packet *packet)
{
	return parse_packet(skb, packet) || (unlikely(may_be_tunnel(skb)) && parse_tunnel(skb, packet));
}

/*
 * Ingress of each NIC of a path: notes by which one the flows of receivers with credits
 * come in, and how much comes in for others. Tunnels' headers are others': what flows may
 * send has room for a NIC's own alone. It changes no packet.
 */
SEC("tc")
int note_arrival(struct __sk_buff *skb)
{
	__u32 index = skb->ifindex, *path = bpf_map_lookup_elem(&credit_nics, &index);
	const struct credit_flow *flow = 0;
	struct packet packet = {};

	if (!path)
		return TCX_NEXT;
	if (find_segment(skb, &packet) && bpf_map_lookup_elem(&credit_receivers, &packet.destination))
		flow = note_flow(&packet, *path);
	if (!flow || !flow->counted)
		note_foreign(*path, skb->len);
	else if (unlikely(is_in_tunnel(&packet)))
		note_foreign(*path, around(skb, &packet));
	return TCX_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
