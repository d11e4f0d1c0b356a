/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Paths that fall silent under traffic. TCP repeats what is not acknowledged. Where it
 * does, nothing of the flow has come in since for longer than answers take, and the peer
 * has answered nobody on that path of late, the path may be dead: the flow avoids it from
 * that packet on, for a while, with no word from the agent.
 *
 * Who only receives learns it from the other end: after a pause that sends by another path
 * than the acknowledgements take, what it repeats, or what was lost before.
 */
#ifndef BRAID_UPLINK_SILENCE_H
#define BRAID_UPLINK_SILENCE_H

#include "slow.h"

enum silence {
	TICK = 20,           /* bits: a tick is 2^20 ns, about a millisecond */
	WAIT_UNIT = 4,       /* ticks */
	LONGEST_WAIT = 255,  /* in these units */
	PATIENCE = 8,        /* ticks beyond the slowest answer: the clock moves in steps */
	OF_LATE = 72,        /* ticks; the agent asks active peers every 50 ms */
	PAUSE = 128,         /* ticks; TCP repeats after 200 ms */
	AVOID_FOR = 2048,    /* ticks, at first */
	MOST_TRIES = 4,      /* each doubles it */
	WINDOW = 1 << 24,    /* by so much a repeated number may be behind */
};

_Static_assert((__u32)HOT_BEHIND == (__u32)WINDOW, "a repeated number is behind by so much wherever it is noted");

/* How often flows left each path because it did not answer. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PATHS);
	__type(key, __u32);
	__type(value, __u64);
} departures SEC(".maps");

/*
 * When the clock was read last: the kernel's count of its timer then, in the upper half, and
 * the tick, which is never 0.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} clock_readings SEC(".maps");

static __always_inline __u64 *last_reading(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&clock_readings, &zero);
}

__noinline __u32 read_clock(__u32 jiffy)
{
	__u32 now = bpf_ktime_get_coarse_ns() >> TICK;
	__u64 *last = last_reading();

	if (!now)
		now = 1;
	/* The kernel moves its count a little before the clock, which may not have moved yet. */
	if (last && now != (__u32)*last)
		*last = (__u64)jiffy << 32 | now;
	return now;
}

/*
 * The clock moves with the kernel's timer, whose count costs nothing to read, while a call that
 * reads the clock takes longer than all that is done with it.
 */
static __always_inline __u32 ticks(void)
{
	__u64 *last = last_reading(), reading = last ? *last : 0;
	__u32 jiffy = bpf_jiffies64();

	return likely(reading >> 32 == jiffy && (__u32)reading) ? (__u32)reading : read_clock(jiffy);
}

static __always_inline __u32 *answer_on(const struct flow *flow, __u32 path)
{
	__u32 index = flow->peer * MAX_PATHS + path;

	return bpf_map_lookup_elem(&answered, &index);
}

static __always_inline int answered_of_late(const struct flow *flow, __u32 now)
{
	__u32 *answer = answer_on(flow, flow->last);

	return answer && *answer && (__s32)(now - *answer) <= OF_LATE;
}

/* The flow leaves its path for the others. */
static __always_inline void avoid_path(struct flow *flow, __u32 now)
{
	note_time(flow);
	flow->avoided |= 1 << (flow->last & (MAX_PATHS - 1));
	flow->avoided_at = now & ~BEGAN;
	if (flow->tries < MOST_TRIES)
		flow->tries++;
}

static __always_inline int waits_too_long(const struct flow *flow, __u32 now)
{
	return (__s32)(now - flow->unanswered) > flow->slowest * WAIT_UNIT + PATIENCE;
}

/*
 * Data is repeated, and nothing has come in since it was sent first, for longer than
 * answers take: the path is avoided unless it answers others.
 */
__noinline int suspect_path(struct flow *flow)
{
	__u32 now = ticks();

	if (!flow || flow->last >= MAX_PATHS)
		return 0;
	if (answered_of_late(flow, now))
		return 1;
	avoid_path(flow, now);
	flow->unanswered = now;
	return 1;
}

/* How many numbers a segment of this node's takes; its frame has no padding. */
static __always_inline __u32 numbers_of(struct __sk_buff *skb, const struct packet *packet)
{
	return skb->len - packet->options - packet->options_length + !!(packet->flags & (TCP_SYN | TCP_FIN));
}

/*
 * Notes what this end sends; true where it was sent before and is not answered. Another interface
 * than the flow's is a forger's.
 */
static __always_inline int note_sent(struct __sk_buff *skb, struct flow *flow, const struct packet *packet)
{
	__u32 numbers = numbers_of(skb, packet), end = bpf_ntohl(packet->sequence) + numbers;

	if (!numbers || unlikely(packet->flags & TCP_RST) || unlikely(origin_of(skb) != flow->from))
		return 0;
	if (!flow->unanswered)
		flow->unanswered = ticks();
	if (likely(flow->sent - end >= WINDOW)) {
		flow->sent = end;
		return 0;
	}
	return unlikely(waits_too_long(flow, ticks())) && suspect_path(flow);
}

/* Whether the flow's own path was avoided for long enough, or has answered since. */
static __always_inline int may_return(const struct flow *flow, __u32 now)
{
	__u32 *answer = flow->path < MAX_PATHS ? answer_on(flow, flow->path) : 0;

	return now - flow->avoided_at >= AVOID_FOR / 2U << (flow->tries & 7) ||
	       (answer && *answer && (__s32)(*answer - flow->avoided_at) > 0);
}

/* Which of these paths a flow may take that avoids some. */
__noinline int without_avoided(struct flow *flow, __u32 paths)
{
	__u32 now = ticks(), others;

	if (!flow)
		return paths;
	if (may_return(flow, now)) {
		flow->avoided = 0;
		if (flow->unanswered)
			flow->unanswered = now;
	}
	others = paths & ~(__u32)flow->avoided;
	return others ? others : paths;
}

/* Counts where the flow takes another path because the last one did not answer. */
__noinline int note_departure(struct flow *flow)
{
	__u64 *count;
	__u32 path;

	if (!flow)
		return 0;
	path = flow->last;
	if (path >= MAX_PATHS || !(flow->avoided >> path & 1))
		return 0;
	count = bpf_map_lookup_elem(&departures, &path);
	if (!count)
		return 0;
	__sync_fetch_and_add(count, 1);
	return 1;
}

/* Something came in after data of this end. */
static __always_inline void note_answer(struct flow *flow)
{
	__u32 now = ticks(), waited, *answer;

	waited = (now - flow->unanswered) / WAIT_UNIT;
	flow->unanswered = 0;
	note_load(flow, now);
	if (flow->last < MAX_PATHS) {
		answer = answer_on(flow, flow->last);
		if (answer)
			*answer = now;
	}
	if (waited > LONGEST_WAIT)
		waited = LONGEST_WAIT;
	if (waited >= flow->slowest)
		flow->slowest = waited;
	else
		flow->slowest -= (flow->slowest >> 4) + 1;
	if (!flow->avoided)
		flow->tries = 0;
}

/* Whether a segment that came in has data; what is too long for the field (BIG TCP) has. */
static __always_inline int brings_data(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 headers = packet->options + packet->options_length - packet->network;
	int is_ipv4 = packet->family == AF_INET;
	__be16 length = 0;

	if (bpf_skb_load_bytes(skb, packet->network + (is_ipv4 ? 2 : 4), &length, sizeof(length)))
		return 0;
	return !length || bpf_ntohs(length) + (is_ipv4 ? 0 : sizeof(struct ipv6hdr)) > headers;
}

/*
 * A number that came before, after a pause, and no data of this end's waits: the other end
 * may not hear what this end acknowledges.
 */
__noinline int note_repeated(struct __sk_buff *skb, const struct packet *packet, struct flow *flow)
{
	struct node *node = this_node();
	__u32 now = ticks();
	__u8 path;

	if (!packet || !flow || !node || flow->last >= MAX_PATHS || now - flow->advanced <= PAUSE)
		return 0;
	path = path_of_interface(node, skb->ifindex);
	if (path == NO_PATH || path == flow->last || answered_of_late(flow, now) || !brings_data(skb, packet))
		return 0;
	avoid_path(flow, now);
	return 1;
}

/* A path by which the flow's packets come in is alive. */
__noinline int note_alive(struct __sk_buff *skb, struct flow *flow)
{
	struct node *node = this_node();
	__u32 path;

	if (!flow || !node)
		return 0;
	path = path_of_interface(node, skb->ifindex);
	if (path >= MAX_PATHS || !(flow->avoided >> path & 1))
		return 0;
	flow->avoided &= ~(1 << path);
	flow->tries = 0;
	return 1;
}

/*
 * New data after a pause, by another path than the flow's came by until then, and goes by: the
 * other end has left that path, and what this end acknowledges may be lost there too.
 */
__noinline int note_move(struct __sk_buff *skb, const struct packet *packet, struct flow *flow, __u8 came_by)
{
	if (!packet || !flow || !came_by || flow->incoming == came_by || flow->path != flow->last ||
	    flow->last + 1 != came_by)
		return 0;
	if (answered_of_late(flow, ticks()) || !brings_data(skb, packet))
		return 0;
	avoid_path(flow, ticks());
	return 1;
}

/* New numbers came in. */
static __always_inline void note_advance(struct __sk_buff *skb, const struct packet *packet, struct flow *flow, __u8 came_by)
{
	__u16 jiffy = bpf_jiffies64();
	__u32 before = flow->advanced;

	if (likely(flow->advanced_jiffy == jiffy && before))
		return;
	flow->advanced_jiffy = jiffy;
	flow->advanced = ticks();
	if (unlikely(before && flow->advanced - before > PAUSE && !flow->unanswered))
		note_move(skb, packet, flow, came_by);
	note_load(flow, flow->advanced);
}

/* Notes what comes in for this end, and by which path something came before, and one. */
static __always_inline void note_received(struct __sk_buff *skb, struct flow *flow, const struct packet *packet, __u8 came_by)
{
	__u32 sequence = bpf_ntohl(packet->sequence);

	if (unlikely(flow->avoided))
		note_alive(skb, flow);
	if (flow->received - sequence >= WINDOW) {
		flow->received = sequence;
		note_advance(skb, packet, flow, came_by);
	} else if (!flow->unanswered && unlikely(flow->incoming != (__u8)(flow->last + 1))) {
		note_repeated(skb, packet, flow);
	}
	if (flow->unanswered)
		note_answer(flow);
}

#endif
