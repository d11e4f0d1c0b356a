/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Credits: a receiver tells each of its senders how fast to send, so that all of them
 * together do not overrun its NIC. Time is cut into epochs. Each flow notes once in an
 * epoch, when it acknowledges, what it received in the last one; the sums of an epoch
 * decide the shares in the next one. Flows that need less than their share leave the rest
 * to the others (max-min fairness).
 */
#ifndef BRAID_TRANSPORT_CREDITS_H
#define BRAID_TRANSPORT_CREDITS_H

#include "connection.h"
#include "requests.h"
#include "socket_ends.h"

enum credit_limit {
	CREDIT_PATHS = 8,
	MAX_CREDIT_NICS = 64,
	MAX_CREDIT_RECEIVERS = 8192, /* addresses */
	MAX_CREDIT_FLOWS = 65536,
	/* The part of a capacity that is given away: the rest are headers, which senders do
	 * not count as they pace, and what lets a queue drain. */
	CREDIT_PARTS = 15,
	CREDIT_WHOLE = 16,
};

SHARED(enum, credit_limit);

enum {
	EPOCHS = 4,             /* that are remembered, this one among them */
	EPOCHS_IN_A_SECOND = 50,
	GROWN_UP = 4,           /* epochs after which a flow can count as modest */
	FEWEST_JOINS = 4,       /* that are taken to come at the same time */
	TELLINGS = 3,           /* of a new credit, some may be lost */
	SMALLEST_PART = 512,    /* of the capacity, as a credit */
	LEAST_CREDIT = 8000,    /* bytes a second: no sender paces itself to less */
	WINDOW_TIME = 2000,     /* us */
	SEGMENTS_ACKNOWLEDGED_AT_ONCE = 12,
	BACKLOG_TIME = 8,       /* ms */
	SEGMENTS_OF_BACKLOG = 4, /* at least */
	TCP_BPF_SNDCWND_CLAMP = 1002,
	NO_CLAMP = 0x7fffffff,
	CREDITS_IN_A_SECOND = 256, /* changes of one socket's pace */
};

#define EPOCH (1000000000ULL / EPOCHS_IN_A_SECOND)
#define TOLD_AGAIN_AFTER 100000000ULL     /* ns */
#define CREDIT_LAPSES_AFTER 1000000000ULL /* ns without another one */

struct credit_flow_key {
	struct address local;
	struct address remote;
	__be16 local_port;
	__be16 remote_port;
};

/* A flow to a pod that hands out credits, as it comes in. */
struct credit_flow {
	__u32 path;
	__u32 counted; /* 1: its socket says what it receives */
};

/* What flows said in an epoch, of the one before it; and what came for others. */
struct epoch {
	__u64 number;
	__u64 foreign;      /* bytes that came for nobody's credit */
	__u64 modest_bytes; /* of flows that use less than they may */
	__u32 modest;       /* such flows */
	__u32 hungry;       /* others */
	__u32 joined;       /* of these, such as were not there before */
	__u32 knocking;     /* handshakes */
};

/* What comes in on a path, and how it is shared in this epoch. */
struct credit_load {
	struct epoch epoch[EPOCHS];
	__u64 whole;  /* what there is for all flows, bytes a second */
	__u64 rest;   /* what modest ones leave of it */
	__u64 level;  /* what a hungry one gets of that */
	__u32 active; /* flows */
	__u32 hungry; /* of these */
};

/* Of paths, by their numbers: bytes of payload a second; 0 where nobody knows. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CREDIT_PATHS);
	__type(key, __u32);
	__type(value, __u64);
} credit_capacities SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, CREDIT_PATHS);
	__type(key, __u32);
	__type(value, struct credit_load);
} credit_loads SEC(".maps");

/* The path of a NIC, by its index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CREDIT_NICS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} credit_nics SEC(".maps");

/* The addresses of pods that hand out credits. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CREDIT_RECEIVERS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct address);
	__type(value, __u32);
} credit_receivers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_CREDIT_FLOWS);
	__type(key, struct credit_flow_key);
	__type(value, struct credit_flow);
} credit_flows SEC(".maps");

/* What a socket gives and gets; part of its conversation. */
struct credit {
	/* as the receiver */
	__u64 epoch;    /* in which it received last; 0 for never */
	__u64 received; /* bytes, when that one began */
	__u64 used;     /* bytes in an epoch */
	__u64 told;     /* bytes a second; 0 for nothing yet */
	__u64 told_at;
	__u32 age;      /* epochs */
	__u32 modest;
	__u32 tellings; /* that are left */
	__u32 path;
	__u32 known;    /* 1: the path is */
	__u32 number;   /* to be told, in the form of the request */
	/* as the sender */
	__u64 rate;     /* bytes a second; 0 for none */
	__u64 heard;
	__u64 changes_since;
	__u32 changes;
	__u32 clamp;    /* segments; 0 for none */
	__u32 backlog;  /* bytes that wait to be sent; 0: own_backlog, the socket's own */
	__u32 own_backlog;
	__u32 share;    /* 64ths of the rate to which it paces */
};

static __always_inline __u64 lesser(__u64 a, __u64 b)
{
	return a < b ? a : b;
}

static __always_inline __u64 greater(__u64 a, __u64 b)
{
	return a > b ? a : b;
}

static __always_inline __u64 divide(__u64 whole, __u64 parts)
{
	return whole / (parts ? parts : 1);
}

/* One of the last epochs, or none where nothing happened in it. */
static __always_inline const struct epoch *past_epoch(const struct credit_load *load, __u64 number)
{
	const struct epoch *epoch = &load->epoch[number & (EPOCHS - 1)];

	return epoch->number == number ? epoch : 0;
}

/*
 * Shares the capacity for an epoch that begins. What others send is taken off, but not all
 * of it. Hungry flows get what the modest ones leave, and not at once: these may want it
 * back.
 */
static __always_inline void share(struct credit_load *load, __u64 capacity, __u64 number)
{
	const struct epoch *last = past_epoch(load, number - 1), *before = past_epoch(load, number - 2);
	__u64 foreign = 0, modest_rate = 0, left, level, active = 0;
	__u32 modest = 0;

	if (last) {
		foreign = last->foreign * EPOCHS_IN_A_SECOND;
		modest_rate = last->modest_bytes * EPOCHS_IN_A_SECOND;
		modest = last->modest;
		active = (__u64)last->hungry + last->modest;
	}
	/* Slow flows do not acknowledge in each epoch. */
	if (before)
		active = greater(active, (__u64)before->hungry + before->modest);
	left = capacity - lesser(foreign, capacity / 4 * 3);
	load->whole = left;
	load->rest = left - lesser(modest_rate + modest_rate / 8, left / 8 * 7);
	load->active = active;
	load->hungry = active - modest;
	level = divide(load->rest, load->hungry);
	load->level = greater(divide(left, active), lesser(level, load->level + load->level / 4));
}

/* The epoch of now. Whoever comes first begins it; what others note at that moment is lost. */
static __always_inline struct epoch *this_epoch(struct credit_load *load, __u64 capacity, __u64 now)
{
	__u64 number = now / EPOCH, before;
	struct epoch *epoch = &load->epoch[number & (EPOCHS - 1)];

	before = epoch->number;
	if (before == number || __sync_val_compare_and_swap(&epoch->number, before, number) != before)
		return epoch;
	epoch->foreign = 0;
	epoch->modest_bytes = 0;
	epoch->modest = 0;
	epoch->hungry = 0;
	epoch->joined = 0;
	epoch->knocking = 0;
	share(load, capacity, number);
	return epoch;
}

/* A flow that uses little of what it may; not to and fro at a limit. */
static __always_inline int is_modest(const struct credit *credit)
{
	__u64 used = credit->used * EPOCHS_IN_A_SECOND;

	return used * 16 < credit->told * (credit->modest ? 14 : 11);
}

/* Notes, once in an epoch, what the flow received since it did so last. */
static __always_inline void note_received(struct epoch *epoch, struct credit *credit, __u64 received, __u64 number)
{
	__u64 epochs = number - credit->epoch, used = received - credit->received;

	if (credit->epoch == number)
		return;
	if (!credit->epoch || epochs >= EPOCHS) {
		credit->age = 0;
		credit->modest = 0;
		__sync_fetch_and_add(&epoch->joined, 1);
	} else {
		used /= epochs;
		credit->used = credit->age ? (3 * credit->used + used) / 4 : used;
		credit->age += credit->age < GROWN_UP;
		credit->modest = credit->age == GROWN_UP && is_modest(credit);
	}
	credit->epoch = number;
	credit->received = received;
	if (credit->modest) {
		__sync_fetch_and_add(&epoch->modest, 1);
		__sync_fetch_and_add(&epoch->modest_bytes, credit->used);
	} else {
		__sync_fetch_and_add(&epoch->hungry, 1);
	}
}

/*
 * What came of a flow before its socket told of it is the flow's, and was foreign so far.
 * Where another one notes something at this moment, it stays.
 */
static __always_inline void claim(struct epoch *epoch, __u64 received)
{
	__u64 foreign = epoch->foreign;

	__sync_val_compare_and_swap(&epoch->foreign, foreign, foreign - lesser(foreign, received));
}

/* Where another one notes something at this moment, it stays. */
static __always_inline void take_one(__u32 *count)
{
	__u32 before = *count;

	if (before)
		__sync_val_compare_and_swap(count, before, before - 1);
}

/* One flow less in an epoch, where that is remembered. */
static __always_inline void take_out(struct credit_load *load, const struct credit *credit, __u64 number)
{
	struct epoch *epoch = &load->epoch[number & (EPOCHS - 1)];

	if (epoch->number == number)
		take_one(credit->modest ? &epoch->modest : &epoch->hungry);
}

/*
 * A flow is at its end: the others get what it had with their next acknowledgements. It counts
 * no more in the epoch of its last note, nor in the one before, and not for this one's shares.
 */
static __always_inline void leave(struct credit_load *load, struct epoch *epoch, const struct credit *credit, __u64 number)
{
	take_out(load, credit, credit->epoch);
	if (!credit->age) {
		if (credit->epoch == number)
			take_one(&epoch->joined);
		return;
	}
	take_out(load, credit, credit->epoch - 1);
	take_one(&load->active);
	if (!credit->modest)
		take_one(&load->hungry);
}

/*
 * What a flow that has not begun may send: others that shook hands at the same time begin
 * with it. Flows that are under way do not heed handshakes, which anybody can forge.
 */
static __always_inline __u64 first_credit(const struct credit_load *load, const struct epoch *epoch, __u64 number)
{
	const struct epoch *last = past_epoch(load, number - 1);
	__u64 knocking = epoch->knocking;

	/* Those that are not there yet join in this epoch. */
	if (last && last->knocking > last->joined)
		knocking += last->knocking - last->joined;
	return divide(load->whole, load->active + greater(epoch->joined, knocking));
}

/* What a flow under way may send. */
static __always_inline __u64 credit_of(const struct credit_load *load, const struct epoch *epoch,
				       const struct credit *credit, __u64 number)
{
	__u64 joined = epoch->joined, fair = divide(load->whole, load->active + joined);

	if (credit->age < 2)
		return first_credit(load, epoch, number);
	if (credit->modest)
		return greater(fair, credit->used * EPOCHS_IN_A_SECOND / 8 * 9);
	return greater(fair, divide(load->level * load->hungry, load->hungry + joined));
}

/* The form in which rates are asked for: at most what is meant. */
static __always_inline __u32 number_of_rate(__u64 rate)
{
	__u64 kilobits = rate / (1000 / 8);
	__u32 exponent = 0, i;

	for (i = 0; i < 31; i++) {
		if (kilobits >> RATE_MANTISSA_BITS == 0)
			break;
		kilobits >>= 1;
		exponent++;
	}
	return exponent << RATE_MANTISSA_BITS | kilobits;
}

/* Lesser credits are told at once, greater ones when they are worth it, or after a while. */
static __always_inline int is_to_be_told(struct credit *credit, __u64 rate, __u64 now)
{
	__u64 told = credit->told;

	if (rate < told - told / 32 || rate > told + told / 8) {
		credit->told = rate;
		credit->tellings = TELLINGS;
	} else if (now - credit->told_at >= TOLD_AGAIN_AFTER && !credit->tellings) {
		credit->told = rate;
		credit->tellings = 1;
	}
	if (!credit->tellings)
		return 0;
	credit->tellings--;
	credit->told_at = now;
	credit->number = number_of_rate(credit->told);
	return 1;
}

/* The path on which a flow comes in; 0 where that is not known. */
static __always_inline struct credit_flow *incoming_flow(struct bpf_sock_ops *ops)
{
	struct credit_flow_key key = {};

	read_addresses(ops, &key.local, &key.remote);
	read_ports(ops, &key.local_port, &key.remote_port);
	return bpf_map_lookup_elem(&credit_flows, &key);
}

static __always_inline __u64 capacity_of(__u32 path)
{
	__u64 *capacity = bpf_map_lookup_elem(&credit_capacities, &path);

	return capacity ? *capacity : 0;
}

/* Whether this end acknowledges for the first time, before any data of the other one. */
enum beginning {
	UNDER_WAY,
	BEGINS_BY_ITSELF,  /* its SYN was answered, of which nothing was counted yet */
	BEGINS_AS_ANSWER,  /* of MPTCP's joins, which wait for it: first_number() counted them */
};

/* The flow of a socket gets nothing any more, and counts no more; once. */
__noinline int end_credit(struct credit *credit)
{
	__u64 now = bpf_ktime_get_ns(), number = now / EPOCH, capacity;
	struct credit_load *load;
	__u32 path;

	if (!credit || !credit->epoch)
		return 0;
	path = credit->path;
	capacity = capacity_of(path);
	load = bpf_map_lookup_elem(&credit_loads, &path);
	if (capacity && load && number - credit->epoch < EPOCHS - 1)
		leave(load, this_epoch(load, capacity, now), credit, number);
	credit->epoch = 0;
	credit->tellings = 0;
	return 0;
}

/* An acknowledgement is made: returns 1 where it is to carry credit->number. */
__noinline int hand_out(struct bpf_sock_ops *ops, struct credit *credit, __u32 beginning)
{
	__u64 now = bpf_ktime_get_ns(), number = now / EPOCH, received, capacity, rate;
	struct credit_load *load;
	struct credit_flow *flow;
	struct epoch *epoch;
	__u64 unclaimed = 0;
	__u32 path;

	if (!credit)
		return 0;
	if (has_ended(ops))
		return end_credit(credit);
	received = ops->bytes_received;
	if (received == credit->received && beginning == UNDER_WAY && !credit->tellings)
		return 0;
	if (!credit->known || credit->epoch != number) {
		flow = incoming_flow(ops);
		if (!flow)
			return 0;
		credit->path = flow->path;
		credit->known = 1;
		if (received && !flow->counted) {
			unclaimed = received;
			flow->counted = 1;
		}
	}
	path = credit->path; /* Linux 6.1 takes no other's memory for a key */
	capacity = capacity_of(path);
	load = bpf_map_lookup_elem(&credit_loads, &path);
	if (!capacity || !load)
		return 0;
	epoch = this_epoch(load, capacity, now);
	if (beginning == BEGINS_BY_ITSELF)
		__sync_fetch_and_add(&epoch->knocking, 1);
	if (unclaimed)
		claim(epoch, unclaimed);
	if (received)
		note_received(epoch, credit, received, number);
	rate = credit_of(load, epoch, credit, number);
	/* Subflows join one after the other: those that come next are not known yet. */
	if (beginning == BEGINS_AS_ANSWER)
		rate = lesser(rate, load->whole / FEWEST_JOINS);
	rate = greater(rate, capacity / SMALLEST_PART);
	return is_to_be_told(credit, rate, now);
}

/* The same for the answer to a SYN, for which there is no socket yet; 0 for no credit. */
__noinline int first_number(struct bpf_sock_ops *ops, __u32 knocks)
{
	__u64 now = bpf_ktime_get_ns(), capacity, rate;
	struct credit_flow *flow = incoming_flow(ops);
	struct credit_load *load;
	struct epoch *epoch;
	__u32 path;

	if (!flow)
		return 0;
	path = flow->path;
	capacity = capacity_of(path);
	load = bpf_map_lookup_elem(&credit_loads, &path);
	if (!capacity || !load)
		return 0;
	epoch = this_epoch(load, capacity, now);
	if (knocks)
		__sync_fetch_and_add(&epoch->knocking, 1);
	rate = greater(first_credit(load, epoch, now / EPOCH), capacity / SMALLEST_PART);
	return number_of_rate(rate);
}

/* Bytes came in on a path for nobody's credit. */
static __always_inline void note_foreign(__u32 path, __u32 bytes)
{
	struct credit_load *load = bpf_map_lookup_elem(&credit_loads, &path);
	__u64 capacity = capacity_of(path);

	if (load && capacity)
		__sync_fetch_and_add(&this_epoch(load, capacity, bpf_ktime_get_ns())->foreign, bytes);
}

#endif
