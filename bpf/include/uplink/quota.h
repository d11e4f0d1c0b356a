/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How many flows each address may have: whoever begins thousands of connections must
 * not push those of others out of the table. Each address may have an eighth of the
 * table as long as there is room, and then a small part that is kept for those who have
 * little. What is beyond that goes by the cluster network's route.
 *
 * Flows belong to the address that began them, on this node or on another. They count
 * from the end of their handshake, which a forger does not see.
 */
#ifndef BRAID_UPLINK_QUOTA_H
#define BRAID_UPLINK_QUOTA_H

#include "maps.h"

enum {
	MAX_OWNERS = 16384,
	ENDED_FLOWS = 16,     /* of an owner, that are still known */
	MOST_PART = 8,        /* of the table, for one owner */
	LEAST_PART = 128,
	UNKNOWN_MOST = 1024,  /* joins to connections that are not known, between two counts */
};

struct owner {
	__u32 flows;   /* that live */
	__u32 unknown; /* joins since the agent counted */
};

/* The flows that ended last, whose last packets still find them, and their connections. */
struct ended_flows {
	struct flow_key key[ENDED_FLOWS];
	struct connection_key connection[ENDED_FLOWS];
	__u32 next;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_OWNERS);
	__type(key, struct address);
	__type(value, struct owner);
} owners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_OWNERS / 4);
	__type(key, struct address);
	__type(value, struct ended_flows);
} ended_flows SEC(".maps");

/* All flows that live. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} living_flows SEC(".maps");

static const struct ended_flows none_ended;

/* The size of the table as the agent made it. */
const volatile __u32 flow_entries = MAX_FLOWS;

static __always_inline struct owner *owner_of(const struct address *address)
{
	struct owner *owner = bpf_map_lookup_elem(&owners, address), fresh = {};

	if (owner)
		return owner;
	bpf_map_update_elem(&owners, address, &fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(&owners, address);
}

static __always_inline __u32 *all_living(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&living_flows, &zero);
}

static __always_inline int is_below(__u32 has, __u32 all)
{
	return has < flow_entries / LEAST_PART || (has < flow_entries / MOST_PART && all < flow_entries / 4 * 3);
}

/* Whether there is a place in the table for one more flow of this address. */
static __always_inline int has_room(const struct address *address)
{
	struct owner *owner = bpf_map_lookup_elem(&owners, address);
	__u32 *all = all_living();

	return !owner || !all || is_below(owner->flows, *all);
}

/* Takes that place; 0: the address has too many. */
static __always_inline int take_room(const struct address *address)
{
	struct owner *owner = owner_of(address);
	__u32 *all = all_living();

	if (!owner || !all)
		return 1;
	if (!is_below(owner->flows, *all))
		return 0;
	__sync_fetch_and_add(&owner->flows, 1);
	__sync_fetch_and_add(all, 1);
	return 1;
}

static __always_inline void give_room(const struct address *address)
{
	struct owner *owner = bpf_map_lookup_elem(&owners, address);
	__u32 *all = all_living();

	if (owner && owner->flows)
		__sync_fetch_and_add(&owner->flows, -1);
	if (all && *all)
		__sync_fetch_and_add(all, -1);
}

static __always_inline const struct address *beginner(const struct flow *flow, const struct flow_key *key)
{
	return flow->role == ROLE_INITIATOR ? &key->local : &key->remote;
}

/* A connection whose flow has just ended may get others at once, and stays. */
static __always_inline void forget_place(struct ended_flows *ended, __u32 place, const struct flow *last)
{
	struct flow *flow = bpf_map_lookup_elem(&flows, &ended->key[place]);
	struct connection *connection = bpf_map_lookup_elem(&connections, &ended->connection[place]);

	if (flow && flow->ended == ENDED_BOTH)
		bpf_map_delete_elem(&flows, &ended->key[place]);
	if (connection && !connection->subflows && ended->connection[place].token != last->token)
		bpf_map_delete_elem(&connections, &ended->connection[place]);
}

/* Another flow has ended: the one that ended longest ago is forgotten. */
__noinline int forget_ended(struct flow_key *key, const struct flow *flow)
{
	struct ended_flows *ended;
	struct address owner;
	__u32 place;

	if (!key || !flow)
		return 0;
	owner = flow->role == ROLE_INITIATOR ? key->local : key->remote;
	ended = bpf_map_lookup_elem(&ended_flows, &owner);
	if (!ended) {
		bpf_map_update_elem(&ended_flows, &owner, &none_ended, BPF_NOEXIST);
		ended = bpf_map_lookup_elem(&ended_flows, &owner);
	}
	if (!ended)
		return 0;
	place = __sync_fetch_and_add(&ended->next, 1);
	barrier_var(place);
	place &= ENDED_FLOWS - 1;
	forget_place(ended, place, flow);
	ended->key[place] = *key;
	ended->connection[place].endpoint = flow->role == ROLE_INITIATOR ? flow->endpoint : 0;
	ended->connection[place].token = flow->role == ROLE_INITIATOR ? flow->token : 0;
	return 1;
}

/* May this address join one more connection that is not known? */
static __always_inline int may_join_unknown(const struct address *address)
{
	struct owner *owner = owner_of(address);

	return !owner || __sync_fetch_and_add(&owner->unknown, 1) < UNKNOWN_MOST;
}

#endif
