//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * hold-addresses: the ingress of the host's end of a pod's interface. A listening pod's
 * kernel announces addresses (ADD_ADDR) on each connection as soon as it is established,
 * and its peer opens a subflow to each. Here the announcements wait until the connection
 * has moved enough or is old enough, and while the node's paths are full of others.
 *
 * The pure ACK by which the kernel announces is dropped: the next segment acknowledges
 * the same. The announcement is kept with the socket, HMAC and all. When it is due,
 * one packet of the connection is cloned; the clone comes in once more behind those that
 * wait before it, and becomes a pure ACK with the announcement. What the kernel repeats
 * by itself passes from then on, as it does where anything here fails.
 *
 * What else the pod's kernel says too early is kept here as well: answers to joins that are not
 * finished. And it asks nobody to take data with its SYNs (fast_open.h).
 */
#include "announcements.h"
#include "fast_open.h"
#include "shared.h"

/* For Go. */
SHARED(enum, hold_limit);
SHARED(enum, tells);
SHARED(struct, told);

static __always_inline __u64 moved_by(const struct tcp_sock *tcp) { return tcp->bytes_acked + tcp->bytes_received; }

/* As many bytes as the connection waits for, or as no connection moves that rests. */
static __always_inline int has_moved(const struct wait *wait, const struct tcp_sock *tcp)
{
	__u64 moved = moved_by(tcp);

	return (wait->bytes && moved >= wait->bytes) || moved >= MOVES;
}

/*
 * Connections that rest fill no path. Where a tenant has very many of them, and all send at the same time later,
 * they do, and keep the subflows that they have by then. So a few at a time get theirs.
 */
static __always_inline int take_turn(const struct wait *wait)
{
	__u64 now = bpf_ktime_get_ns(), before, after, *until;
	__u32 key = wait->room;

	/* However long nobody took one, a tenant has TURNS_AT_ONCE left, with this one. */
	after = now - (TURNS_AT_ONCE - 1) * (__u64)TURN_EVERY;
	until = bpf_map_lookup_elem(&turns, &key);
	if (!until)
		return bpf_map_update_elem(&turns, &key, &after, BPF_NOEXIST) != THERE_ALREADY;
	before = *until;
	if (before > now)
		return 0;
	if (after < before + TURN_EVERY)
		after = before + TURN_EVERY;
	return __sync_val_compare_and_swap(until, before, after) == before;
}

/*
 * Takes the place of one connection. Where the agent is away connections get one after
 * the other, and never many at once: the paths may be full.
 */
static __always_inline int take_room(const struct wait *wait, const struct tcp_sock *tcp)
{
	__u32 key = wait->room;
	struct room *room = bpf_map_lookup_elem(&rooms, &key);
	__u64 now, until;

	if (likely(!room))
		return has_moved(wait, tcp) || take_turn(wait);
	if (room->left > 0 && __sync_fetch_and_add(&room->left, -1) > 0)
		return 1;
	now = bpf_ktime_get_ns();
	until = room->until;
	return now >= until && __sync_val_compare_and_swap(&room->until, until, now + PLACE_EVERY) == until;
}

/* By a cookie from before, or from elsewhere (fast_open.h): such a connection gets no further subflow. */
static __always_inline int began_with_data(const struct tcp_sock *tcp) { return READ_BIT(tcp, SYN_DATA_ACKED); }

static __always_inline int lasts(const struct wait *wait, const struct tcp_sock *tcp, struct held *held)
{
	if (held->lasts)
		return 1;
	if (unlikely(began_with_data(tcp)))
		return 0;
	if ((wait->bytes && moved_by(tcp) >= wait->bytes) || (wait->time && bpf_ktime_get_ns() - held->began >= wait->time))
		held->lasts = take_room(wait, tcp);
	if (held->lasts)
		held->began = 0; /* none was let go yet */
	return held->lasts;
}

/*
 * us; 0 before. The kernel looks again at a buffer from which the application reads, but that of a
 * subflow is read by MPTCP.
 */
static __always_inline __u64 established(const struct tcp_sock *tcp) { return tcp->rcvq_space.time; }

/*
 * ns, when it sent or got something last. The kernel has looked at the clock for that; to ask for the time
 * here, too, would take longer than all else that is done with a packet of a young connection.
 */
static __always_inline __u64 age_of(const struct tcp_sock *tcp) { return (tcp->tcp_mstamp - established(tcp)) * 1000; }

/* Since when an announcement waits, ns: an agent may have the kernel announce on connections that are there for long. */
static __always_inline __u64 waits_since(const struct tcp_sock *tcp) { return established(tcp) * 1000; }

/*
 * Timestamps and data sequence signals alone, as in most acknowledgements, or too little for an announcement: that
 * is seen without a copy of the options.
 */
static __always_inline int announces_nothing(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 offset = packet->options, length = packet->options_length;
	const struct usual_options *options;

	if (length < LENGTH_ADD_IPV4)
		return 1;
	barrier_var(offset);
	options = (void *)(unsigned long)skb->data + (offset & TRANSPORT_MASK);
	if ((void *)(options + 1) > (void *)(unsigned long)skb->data_end)
		return 0;
	return options->timestamps[0] == bpf_htonl(TIMESTAMPS_HEAD) && options->kind == OPTION_MPTCP &&
	       options->subtype >> 4 == SUBTYPE_DSS && PADDED_TIMESTAMPS + ((options->length + 3) & ~3U) == length;
}

/* Keeps what the packet announces; 0 where it announces nothing, or is not to be kept. */
static __always_inline int keep(struct __sk_buff *skb, void *socket, const struct wait *wait,
				const struct tcp_sock *tcp, struct held *held)
{
	struct announcement announcement = {};
	struct packet packet;
	__u32 place;

	if (skb->len > LONGEST_ACK || !parse_packet(skb, &packet) || !is_bare_ack(skb, &packet))
		return 0;
	if (likely(announces_nothing(skb, &packet)) || !find_announcement(skb, &packet, &announcement))
		return 0;
	if (!held)
		held = bpf_sk_storage_get(&held_announcements, socket, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!held)
		return 0;
	if (!held->began)
		held->began = waits_since(tcp);
	if (lasts(wait, tcp, held))
		return 0;
	place = announcement.option[ID_AT] & (PLACES - 1);
	barrier_var(place);
	held->announcement[place & (PLACES - 1)] = announcement;
	held->waiting |= 1 << place;
	return 1;
}

/*
 * The sequence number behind all that was sent, which the peer will still accept when the
 * clone arrives. The socket counts a segment after this program has seen it.
 */
static __always_inline __be32 behind(const struct __sk_buff *skb, const struct packet *packet,
				     const struct tcp_sock *tcp)
{
	__u32 end = bpf_ntohl(packet->sequence) + skb->len - packet->options - packet->options_length;
	__u32 next = tcp->snd_nxt;

	return bpf_htonl((__s32)(end - next) > 0 ? end : next);
}

/* Sends one that waits, by a clone of this packet. */
static __always_inline void let_go(struct __sk_buff *skb, const struct tcp_sock *tcp, struct held *held)
{
	__u32 place = lowest(held->waiting), before = skb->tc_index;
	struct carried carried = {};
	struct packet packet;
	struct ends ends;

	if (!parse_packet(skb, &packet) || packet.flags & (TCP_SYN | TCP_FIN | TCP_RST))
		return;
	carried.sequence = behind(skb, &packet, tcp);
	barrier_var(place);
	carried.announcement = held->announcement[place & (PLACES - 1)];
	held->waiting &= ~(1 << place);
	held->began = bpf_ktime_get_ns();
	ends_of(&ends, &packet);
	if (bpf_map_update_elem(&carried_announcements, &ends, &carried, BPF_ANY))
		return;
	skb->tc_index = CARRIES;
	bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	skb->tc_index = before;
}

/* That of an MPTCP socket; 0 of any other. */
static __always_inline struct mptcp_subflow_context *subflow_of(const struct tcp_sock *tcp)
{
	return tcp->is_mptcp ? tcp->inet_conn.icsk_ulp_data : 0;
}

/*
 * A subflow by which a peer joins is finished when whoever holds the connection's lock
 * releases it. The kernel answers before, and puts data that comes before that in the
 * wrong place (docs/kernel-notes.md). So the answer waits: without it the peer sends no
 * data, and asks again after two round trips, and then again. Linux before 6.5 does not
 * tell, and has no need to.
 */
static __always_inline int is_joining(const struct tcp_sock *tcp)
{
	struct mptcp_subflow_context *subflow = 0;
	__u32 id;

	if (!__builtin_preserve_field_info(subflow->subflow_id, FIELD_EXISTS))
		return 0;
	subflow = subflow_of(tcp);
	return subflow && !bpf_probe_read_kernel(&id, sizeof(id), &subflow->subflow_id) && !id;
}

static __always_inline int is_early_answer(struct __sk_buff *skb, const struct tcp_sock *tcp)
{
	struct packet packet;

	if (likely(tcp->bytes_received || tcp->bytes_acked > 1) || tcp->segs_out > MAX_ANSWERS)
		return 0;
	return is_joining(tcp) && parse_packet(skb, &packet) && is_bare_ack(skb, &packet);
}

/* Whether the pod sent the connection's first SYN. */
static __always_inline int is_begun_here(const struct tcp_sock *tcp)
{
	struct mptcp_subflow_context *subflow = subflow_of(tcp);

	return subflow && READ_BIT(subflow, REQUEST_MPTCP);
}

/* Tells the agent once; it asks for it anew. */
static __always_inline void tell_of(const struct __sk_buff *skb, struct wait *wait, __u32 what, __u32 token)
{
	struct told *told = bpf_ringbuf_reserve(&told_interfaces, sizeof(*told), 0);

	if (!told)
		return;
	told->index = skb->ifindex;
	told->what = what;
	told->token = token;
	wait->tells &= ~what;
	bpf_ringbuf_submit(told, 0);
}

static __always_inline void tell(const struct __sk_buff *skb, struct wait *wait, __u32 what)
{
	tell_of(skb, wait, what, 0);
}

static __always_inline int has_moved_or_aged(const struct wait *wait, const struct tcp_sock *tcp, __u32 bytes_part, __u32 time_part)
{
	return (wait->bytes && moved_by(tcp) >= wait->bytes / bytes_part) ||
	       (wait->time && age_of(tcp) >= wait->time / time_part);
}

/*
 * The agent's events would cost each connection: those that say little have none, and the agent looks for
 * them now and then.
 */
static __always_inline void watch(const struct __sk_buff *skb, struct wait *wait, const struct tcp_sock *tcp)
{
	if (tcp->segs_out < SAYS_LITTLE || likely(!(wait->time ? age_of(tcp) >= wait->time : moved_by(tcp) >= wait->bytes)))
		return;
	if (is_begun_here(tcp))
		tell(skb, wait, TELLS_LASTING);
}

/* A pod of short connections announces nothing. */
static __always_inline void watch_served(const struct __sk_buff *skb, struct wait *wait, const struct tcp_sock *tcp)
{
	if (unlikely(has_moved_or_aged(wait, tcp, 1, 1)) && !is_begun_here(tcp))
		tell(skb, wait, TELLS_SERVED);
}

static __always_inline __u32 socket_token(const struct tcp_sock *tcp)
{
	struct mptcp_subflow_context *subflow = subflow_of(tcp);
	__u32 token = 0;

	if (subflow)
		bpf_probe_read_kernel(&token, sizeof(token), &subflow->token);
	return token;
}

/* Of a pod whose subflows the agent opens. */
static __always_inline void watch_for_agent(const struct __sk_buff *skb, struct wait *wait, const struct tcp_sock *tcp)
{
	int begun_here;

	if (likely(!(wait->tells & TELLS_BEGUN) && !has_moved_or_aged(wait, tcp, SERVED_BYTES_PART, SERVED_TIME_PART)))
		return;
	begun_here = is_begun_here(tcp);
	if (begun_here && wait->tells & TELLS_BEGUN)
		tell(skb, wait, TELLS_BEGUN);
	if (begun_here && wait->tells & TELLS_LASTING && has_moved_or_aged(wait, tcp, 1, 1))
		tell_of(skb, wait, TELLS_LASTING, socket_token(tcp));
	if (!begun_here && wait->tells & TELLS_SERVED && has_moved_or_aged(wait, tcp, SERVED_BYTES_PART, SERVED_TIME_PART))
		tell(skb, wait, TELLS_SERVED);
}

/*
 * Tells of connections that last. Nothing is kept of any: the kernel counts what each moved, and knows since
 * when it is there.
 */
static __always_inline void watch_all(const struct __sk_buff *skb, struct wait *wait, const struct tcp_sock *tcp)
{
	if (!tcp->is_mptcp || !established(tcp))
		return;
	if (wait->tells & AGENT_OPENS) {
		watch_for_agent(skb, wait, tcp);
		return;
	}
	if (wait->tells & TELLS_LASTING)
		watch(skb, wait, tcp);
	if (wait->tells & TELLS_SERVED)
		watch_served(skb, wait, tcp);
}

/* The answer to a SYN of MPTCP: who listens has no socket of the connection's, or subflow's, own yet. */
static __always_inline int is_answer(struct __sk_buff *skb, __u32 subtype)
{
	struct suboption found = {};
	struct packet packet;

	return parse_packet(skb, &packet) && (packet.flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK) &&
	       find_suboption(skb, packet.options, packet.options_length, 1 << subtype, &found);
}

/*
 * The kernel would refuse the peer's next packet for good. So its answer waits for somebody who listens:
 * it repeats it after a second. Where the agent was told already that a connection lasts, it is about to
 * listen: a peer that is refused until then and tries again, as agents do, is sooner accepted.
 */
static __always_inline int is_refused_join(struct __sk_buff *skb, struct wait *wait)
{
	const __u32 rests = AGENT_OPENS | REFUSES_JOINS | TELLS_SERVED;

	if (likely((wait->tells & rests) != rests) || !is_answer(skb, SUBTYPE_JOIN))
		return 0;
	if (wait->tells & TELLS_JOIN)
		tell(skb, wait, TELLS_JOIN);
	return 1;
}

static __always_inline int keep_back(void)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&kept_back, &zero);

	if (count)
		++*count;
	return TC_ACT_SHOT;
}

/* What the pod says before it has a socket for it. */
static __always_inline int answer(struct __sk_buff *skb, struct wait *wait)
{
	if (unlikely(is_refused_join(skb, wait)))
		return TC_ACT_SHOT;
	if (unlikely(wait->tells & (TELLS_ANSWER | TELLS_ARRIVAL)) && is_answer(skb, SUBTYPE_CAPABLE))
		tell(skb, wait, TELLS_ANSWER | TELLS_ARRIVAL);
	return TCX_NEXT;
}

SEC("tc")
int hold_addresses(struct __sk_buff *skb)
{
	__u32 index = skb->ifindex;
	struct wait *wait = bpf_map_lookup_elem(&waits, &index);
	struct tcp_sock *tcp;
	struct held *held = 0;
	void *socket;

	if (!wait)
		return TCX_NEXT;
	if (unlikely(skb->tc_index == CARRIES))
		return carry(skb);
	socket = (void *)(unsigned long)skb->sk;
	if (!socket)
		return TCX_NEXT;
	tcp = bpf_skc_to_tcp_sock(socket);
	if (!tcp)
		return bpf_sk_fullsock(socket) ? TCX_NEXT : answer(skb, wait);
	if (unlikely(!established(tcp)) && wait->tells & MAY_BE_JOINED && tcp->is_mptcp)
		refuse_fast_open(skb);
	if (unlikely(is_early_answer(skb, tcp)))
		return keep_back();
	if (!wait->bytes && !wait->time)
		return TCX_NEXT;
	if (wait->tells & (TELLS_LASTING | TELLS_SERVED | TELLS_BEGUN))
		watch_all(skb, wait, tcp);
	if (wait->tells & AGENT_OPENS)
		return TCX_NEXT;
	if (tcp->inet_conn.icsk_inet.sk.sk_bpf_storage)
		held = bpf_sk_storage_get(&held_announcements, socket, 0, 0);
	if ((!held || !held->lasts) && keep(skb, socket, wait, tcp, held))
		return TC_ACT_SHOT;
	if (held && held->waiting && lasts(wait, tcp, held) && bpf_ktime_get_ns() - held->began >= LET_GO_EVERY)
		let_go(skb, tcp, held);
	return TCX_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
