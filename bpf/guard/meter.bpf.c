//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * meter: the egress of each NIC, after to_uplink, so that it meets each packet on
 * the NIC that sends it, and once. It charges every packet of a guarded endpoint,
 * whatever the protocol, and drops what is beyond a limit:
 *
 * - The rate of an endpoint over all NICs and the ceiling of its tenant on a path
 *   are hard: nothing passes beyond them.
 * - A share is soft: what an endpoint sends beyond its share passes as long as
 *   neither its tenant's ceiling nor the path is nearly used up. So nothing lies
 *   idle that somebody wants, whether or not an agent runs.
 *
 * What passes a hard limit waits in the path's queue, which lets it go at the rate:
 * a sender sees its packets delayed before it sees them dropped. The queue is only
 * as long as limits let pass at once.
 *
 * Each limit is a time at which all that was sent will have been paid for. All
 * CPUs move it on by atomic steps; what passes is always charged, so that the rate
 * holds in the long run, also when several CPUs let a packet pass at once.
 */
#include "sender.h"
#include "kept_origin.h"
#include "shared.h"

enum {
	/* Acknowledgements, SYNs and the like may go a little further: a loss of
	 * theirs costs a sender more than it spares the limit. */
	SMALL = 128,
	SMALL_BURST = 10 * MILLISECOND,
	/* From where on shares count: a ceiling that is nearly used up, and a path
	 * whose NIC has as much waiting. */
	TENANT_CROWDED = BURST / 2,
	PATH_CROWDED = 5 * MILLISECOND,
	/* What a link spends on each frame: preamble, checksum and gap; at least a 64th,
	 * or a path whose frames are long would seem to have more room than its queue. */
	LINK_OVERHEAD = 24,
	LEAST_OVERHEAD_SHIFT = 6,
};

/* For Go. */
SHARED(enum, allowance_flag);
SHARED(enum, guard_limit);
SHARED(enum, guard_row);
SHARED(enum, price);

/* A tunnel's device forgets where a packet came from: name_sender wrote it down before. Endpoints
 * that nobody guards have their numbers there too. */
static __always_inline __u32 sender_in_tunnel(__u32 noted)
{
	__u32 row = noted & ORIGIN_NUMBER;

	return noted & ORIGIN_ENDPOINT && is_guarded(row) ? row : 0;
}

static __always_inline __u32 sender_of(struct __sk_buff *skb)
{
	__u32 row = row_of_interface(skb->ingress_ifindex);
	struct address source = {};
	enum source kind;

	if (row)
		return row;
	restore_origin(skb);
	if (!skb->ingress_ifindex && skb->tc_index & ORIGIN_TUNNEL)
		return sender_in_tunnel(skb->tc_index);
	kind = read_source(skb, &source);
	return row_of_address(&source, kind);
}

/* What a packet is charged to; prices that are 0 do not count. */
struct bill {
	__u64 now;
	__u64 price, share, ceiling, capacity;
	__u64 *paid, *share_paid, *ceiling_paid, *capacity_paid;
	__u32 bytes;
	__u32 queued;
};

enum { CLASS = 1 << 16 }; /* the queues' classes are 1:row */

/*
 * What an endpoint sent beyond its share while others left it the room is not paid back: no more
 * of its packets can wait than wait of all for which the limit is. Otherwise they would be dropped
 * when the others come, while none of its own wait in the queue, and a single connection, which
 * then sends less, would leave a part of its share to others.
 */
static __always_inline void forgive(const struct bill *bill, const __u64 *paid_by_all, __u64 price_for_all)
{
	__u64 before = *(volatile __u64 *)bill->share_paid, waiting, most;
	__s64 all = ahead(paid_by_all, bill->now);

	price_for_all >>= PRICE_SHIFT / 2;
	if (!bill->share || !price_for_all)
		return;
	waiting = all > 0 ? ((__u64)all << PRICE_SHIFT / 2) / price_for_all : 0; /* bytes */
	if (waiting >= ((__u64)BURST << PRICE_SHIFT) / bill->share)
		return;
	most = bill->now + (waiting * bill->share >> PRICE_SHIFT);
	if ((__s64)(before - most) > 0)
		__sync_val_compare_and_swap(bill->share_paid, before, most);
}

/* Whether an endpoint sent no more than its share. */
static __always_inline int within_share(const struct bill *bill)
{
	if (!bill->share || ahead(bill->share_paid, bill->now) <= BURST)
		return 1;
	if (bill->capacity)
		forgive(bill, bill->capacity_paid, bill->capacity);
	else if (bill->ceiling)
		forgive(bill, bill->ceiling_paid, bill->ceiling);
	return ahead(bill->share_paid, bill->now) <= BURST;
}

static __always_inline int may_pass(const struct bill *bill)
{
	__s64 burst = bill->bytes <= SMALL ? BURST + SMALL_BURST : BURST;

	if (bill->price && ahead(bill->paid, bill->now) > burst)
		return 0;
	if (bill->ceiling && ahead(bill->ceiling_paid, bill->now) > burst)
		return 0;
	if (within_share(bill))
		return 1;
	if (bill->ceiling && ahead(bill->ceiling_paid, bill->now) > TENANT_CROWDED)
		return 0;
	return !bill->capacity || ahead(bill->capacity_paid, bill->now) <= PATH_CROWDED;
}

static __always_inline void pay(const struct bill *bill)
{
	if (bill->price)
		charge(bill->paid, bill->now, bill->price, bill->bytes);
	if (bill->ceiling)
		charge(bill->ceiling_paid, bill->now, bill->ceiling, bill->bytes);
	/* What is beyond the share is a gift, and not to be paid back. */
	if (bill->share && ahead(bill->share_paid, bill->now) <= BURST)
		charge(bill->share_paid, bill->now, bill->share, bill->bytes);
}

/* A path's number: the verifier of Linux 6.1 forgets the bounds of copies, and of what was spilled. */
static __always_inline __u32 path_index(__u32 path)
{
	barrier_var(path);
	return path & (MAX_PATHS - 1);
}

static __always_inline void add_ceiling(struct bill *bill, __u32 row, __u32 path)
{
	struct tenant *tenant = bpf_map_lookup_elem(&tenants, &row);
	struct tenant_usage *usage = bpf_map_lookup_elem(&tenant_usages, &row);

	if (!tenant || !usage)
		return;
	path = path_index(path);
	bill->ceiling = tenant->price[path];
	bill->ceiling_paid = &usage->paid[path];
}

/* Whether the endpoint may send the packet; counts it. */
static __always_inline int admit(__u32 row, __u32 place, struct bill *bill)
{
	struct allowance *allowance = bpf_map_lookup_elem(&allowances, &row);
	struct usage *usage = bpf_map_lookup_elem(&usages, &row);

	if (!allowance || !usage)
		return 1;
	bill->price = allowance->price;
	bill->paid = &usage->paid;
	if (place < MAX_PATHS) {
		__u32 path = path_index(place);

		bill->share = allowance->share[path];
		bill->share_paid = &usage->share_paid[path];
		bill->queued = allowance->flags & QUEUED << path;
		if (allowance->tenant)
			add_ceiling(bill, allowance->tenant, path);
	}
	if (!may_pass(bill)) {
		__sync_fetch_and_add(&usage->dropped[place], bill->bytes);
		__sync_fetch_and_add(&usage->dropped_packets[place], 1);
		return 0;
	}
	pay(bill);
	__sync_fetch_and_add(&usage->sent[place], bill->bytes);
	return 1;
}

/* What the packet takes of the link's capacity. */
static __always_inline __u32 link_bytes(const struct __sk_buff *skb, __u32 bytes)
{
	__u32 segments = skb->gso_segs, least = bytes >> LEAST_OVERHEAD_SHIFT;
	__u32 overhead = (segments ? segments : 1) * LINK_OVERHEAD;

	return bytes + (overhead > least ? overhead : least);
}

static __always_inline int enqueue(struct __sk_buff *skb, __u32 row, __u32 path)
{
	__u32 *queue = bpf_map_lookup_elem(&queues, &path);

	if (!queue || !*queue)
		return TCX_NEXT;
	skb->priority = CLASS | row;
	return bpf_redirect(*queue, 0);
}

SEC("tc")
int meter(struct __sk_buff *skb)
{
	struct bill bill = { .bytes = wire_bytes(skb) };
	struct path_usage *path_usage;
	struct path *path;
	__u32 index = skb->ifindex, place, row, at;
	__u32 *nic = bpf_map_lookup_elem(&nics, &index);

	if (!nic)
		return TCX_NEXT;
	place = *nic;
	if (place > NO_PATH)
		return TCX_NEXT;
	/* Only now is it spilled, with its bounds. */
	barrier_var(place);
	at = place;
	path = bpf_map_lookup_elem(&paths, &at);
	path_usage = bpf_map_lookup_elem(&path_usages, &at);
	row = sender_of(skb);
	if (row == OUT_OF_QUEUE)
		return TCX_NEXT;
	if (path && path_usage) {
		bill.capacity = path->price;
		bill.capacity_paid = &path_usage->paid;
	}
	if (!row && !bill.capacity)
		return TCX_NEXT;
	bill.now = bpf_ktime_get_ns();
	if (row && !admit(row, place, &bill))
		return TC_ACT_SHOT;
	if (bill.capacity && path_usage) {
		charge(&path_usage->paid, bill.now, bill.capacity, link_bytes(skb, bill.bytes));
		__sync_fetch_and_add(&path_usage->sent, bill.bytes);
	}
	return bill.queued ? enqueue(skb, row, place) : TCX_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
