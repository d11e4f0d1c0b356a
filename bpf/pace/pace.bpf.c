//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * What is done to the sockets of endpoints themselves: pacing and the choice of
 * congestion control; and what rules ask of peers is noted for the program that asks.
 * The first program sees every socket of the machine when it
 * becomes established, and those of endpoints then once in each round trip. The
 * second one goes over the sockets that exist, in one network namespace, so that
 * a change need not wait for a round trip, and reaches older connections.
 */
#include "pacing.h"
#include "asked_by_rules.h"
#include "socket_ends.h"
#include "endpoint/subflow.h"

enum {
	/* A subflow that has no share of its connection's rate yet gets this part. */
	FIRST_SHARE = 8,
};

/* Whose sockets those of a network namespace are. */
struct stack {
	__u32 endpoint;
	__u32 binding;     /* so many rules of its chain, the first ones, are the cluster's */
	__u64 congestions; /* the rules of its chain that choose a congestion control */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_ENDPOINTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64); /* cookie of the network namespace */
	__type(value, struct stack);
} netns_endpoints SEC(".maps");

/* The shares of subflows in the rate of their connection or endpoint, as the agent
 * gives them, in bytes a second. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct subflow_key);
	__type(value, __u64);
} paces SEC(".maps");

struct congestion_key {
	__u32 endpoint;
	__u32 rule;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct congestion_key);
	__type(value, struct congestion);
} congestions SEC(".maps");

/* What the rules of a chain ask of peers, in the form of requests.h. */
struct rule_requests {
	__u64 rates;       /* the rules that ask for a rate */
	__u64 congestions; /* those that ask for a congestion control */
	__u64 schedules;   /* those that ask for a strategy */
	__u32 endpoint;
	__u32 binding;     /* as of struct stack */
	__u16 rate[MAX_RULES];
	__u16 congestion[MAX_RULES];
	__u16 schedule[MAX_RULES];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_ENDPOINTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64); /* cookie of the network namespace */
	__type(value, struct rule_requests);
} rule_requests SEC(".maps");

/* What was done to a socket and what it had before; it goes with the socket. */
struct governed {
	__u64 rate;               /* 0: not paced by us */
	__u32 own_rate;           /* what the application had set */
	__u32 chosen;             /* 1: congestion control chosen by us */
	struct congestion own;    /* the one before */
	struct congestion wanted;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct governed);
} governed_sockets SEC(".maps");

/* The map of chains in subflow.h needs the type, which nothing else here names. */
static __attribute__((used)) void know_chains(struct chain *chain)
{
	(void)chain;
}

static __always_inline int may_pace(const struct limit *limit)
{
	return limit->rate && (limit->mechanism == MECHANISM_AUTO || limit->mechanism == MECHANISM_PACE);
}

/* Bytes a second; 0 for no pace. */
static __always_inline __u64 wanted_rate(const struct subflow_key *key, const struct subflow *subflow)
{
	const struct limit *limit = &subflow->limit[FROM_ENDPOINT];
	const __u64 *share = bpf_map_lookup_elem(&paces, key);

	if (share)
		return *share;
	if (!may_pace(limit))
		return 0;
	return limit->scope == SCOPE_SUBFLOW ? limit->rate : limit->rate / FIRST_SHARE + 1;
}

/* Agents before knew the application's own pace alone, and may come back. */
static __always_inline void pace_socket(void *socket, void *sk, struct governed *governed, __u64 rate)
{
	governed->own_rate = want_rate(socket, sk, PACER_RULES, rate, governed->rate ? governed->own_rate : 0);
	governed->rate = rate;
}

/*
 * MPTCP gives a subflow the connection's own choice when it joins, which can be
 * after it was established: so the choice is looked at each time.
 */
static __always_inline void choose_congestion(void *socket, struct governed *governed, const struct congestion *wanted)
{
	struct congestion now = {};

	if (bpf_getsockopt(socket, SOL_TCP, TCP_CONGESTION, now.name, sizeof(now.name)))
		return;
	if (!governed->chosen || !same(&now, &governed->wanted))
		governed->own = now;
	governed->chosen = 1;
	governed->wanted = *wanted;
	if (same(&now, wanted))
		return;
	bpf_setsockopt(socket, SOL_TCP, TCP_CONGESTION, governed->wanted.name, sizeof(governed->wanted.name));
}

static __always_inline void restore_congestion(void *socket, struct governed *governed)
{
	bpf_setsockopt(socket, SOL_TCP, TCP_CONGESTION, governed->own.name, sizeof(governed->own.name));
	governed->chosen = 0;
}

static __always_inline __u64 matching(const struct subflow *subflow)
{
	return subflow->sure[FROM_ENDPOINT] | subflow->sure[TO_ENDPOINT] | subflow->stack;
}

/* Those of tenants decide where none of the cluster's does, which are the first ones. */
static __always_inline __u64 deciding(__u64 rules, __u32 binding)
{
	__u64 clusters = rules & (binding < MAX_RULES ? (1ULL << binding) - 1 : ~0ULL);

	return clusters ? clusters : rules;
}

/* The last rule that matches decides. */
static __always_inline struct congestion *wanted_congestion(const struct stack *stack, const struct subflow *subflow)
{
	struct congestion_key key = { .endpoint = stack->endpoint };
	__u64 rules = deciding(stack->congestions & matching(subflow), stack->binding);

	if (!rules)
		return 0;
	key.rule = 63 - __builtin_clzll(rules);
	return bpf_map_lookup_elem(&congestions, &key);
}

/* Undoes what was done to a socket that is governed no more. */
static __always_inline void release(void *socket, void *sk)
{
	struct governed *governed = bpf_sk_storage_get(&governed_sockets, sk, 0, 0);

	if (!governed)
		return;
	if (governed->rate)
		pace_socket(socket, sk, governed, 0);
	if (governed->chosen)
		restore_congestion(socket, governed);
	bpf_sk_storage_delete(&governed_sockets, sk);
}

static __always_inline void govern(void *socket, void *sk, const struct stack *stack, const struct subflow_key *key)
{
	struct subflow *subflow = bpf_map_lookup_elem(&subflows, key);
	struct congestion *congestion;
	struct governed *governed;
	__u64 rate, create;

	if (!subflow) {
		release(socket, sk);
		return;
	}
	rate = wanted_rate(key, subflow);
	create = rate ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0;
	congestion = wanted_congestion(stack, subflow);
	barrier_var(create);
	if (congestion)
		create = BPF_LOCAL_STORAGE_GET_F_CREATE;
	governed = bpf_sk_storage_get(&governed_sockets, sk, 0, create);
	if (!governed)
		return;
	if (rate != governed->rate)
		pace_socket(socket, sk, governed, rate);
	subflow->paced = governed->rate;
	if (congestion)
		choose_congestion(socket, governed, congestion);
	else if (governed->chosen)
		restore_congestion(socket, governed);
}

static __always_inline void read_key(struct bpf_sock_ops *ops, __u32 endpoint, struct subflow_key *key)
{
	read_addresses(ops, &key->local, &key->remote);
	read_ports(ops, &key->local_port, &key->remote_port);
	key->endpoint = endpoint;
}

/*
 * The least rate that these rules ask for: of two numbers the lesser is the lesser rate, and 0 is
 * none. Without branches: the verifier would follow each of them for each rule.
 */
static __always_inline __u32 least_asked(const struct rule_requests *requests, __u64 rules)
{
	__s64 least = (__u32)-1;
	__u32 i;

#pragma clang loop unroll(disable)
	for (i = 0; i < MAX_RULES; i++) {
		__s64 lesser = (__u32)((requests->rate[i] - 1) | ((rules >> i & 1) - 1));

		lesser -= least;
		barrier_var(lesser);
		least += lesser & (lesser >> 63);
	}
	return least + 1;
}

/* The number of the rule that decides, of those that ask for something; 0 for none. */
static __always_inline __u32 decided(const __u16 *number, __u64 rules, __u32 binding)
{
	__u32 rule;

	rules = deciding(rules, binding);
	if (!rules)
		return 0;
	rule = 63 - __builtin_clzll(rules);
	barrier_var(rule);
	return number[rule & (MAX_RULES - 1)];
}

/*
 * Notes what the rules that match the subflow ask of its peer. Acknowledgements are made in
 * any case, so it goes on without the agent, also where the pod sends nothing else.
 */
static __always_inline void note_requests(struct bpf_sock_ops *ops, struct bpf_sock *sk)
{
	__u64 cookie = bpf_get_netns_cookie(ops), now, rules;
	struct rule_requests *requests;
	struct subflow_key key = {};
	struct asked_by_rules *asked;
	struct subflow *subflow;

	requests = bpf_map_lookup_elem(&rule_requests, &cookie);
	if (!requests)
		return;
	asked = bpf_sk_storage_get(&asked_by_rules, sk, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	now = bpf_ktime_get_ns();
	if (!asked || (asked->looked && now - asked->looked < RULES_LOOK_AFTER))
		return;
	read_key(ops, requests->endpoint, &key);
	subflow = bpf_map_lookup_elem(&subflows, &key);
	rules = subflow ? matching(subflow) : 0;
	asked->rate = least_asked(requests, rules & requests->rates);
	asked->congestion_control = decided(requests->congestion, rules & requests->congestions, requests->binding);
	asked->schedule = decided(requests->schedule, rules & requests->schedules, requests->binding);
	asked->looked = now;
}

static __always_inline int is_of_interest(__u32 op)
{
	return op == BPF_SOCK_OPS_RTT_CB || op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB ||
	       op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB || op == BPF_SOCK_OPS_HDR_OPT_LEN_CB;
}

SEC("sockops")
int govern_sockets(struct bpf_sock_ops *ops)
{
	struct subflow_key key = {};
	struct bpf_sock *sk;
	struct stack *stack;
	__u64 cookie;

	if (!is_of_interest(ops->op))
		return 1;
	sk = ops->sk;
	if (!sk)
		return 1;
	if (ops->op == BPF_SOCK_OPS_HDR_OPT_LEN_CB) {
		if (is_pure_ack(ops))
			note_requests(ops, sk);
		return 1;
	}
	cookie = bpf_get_netns_cookie(ops);
	stack = bpf_map_lookup_elem(&netns_endpoints, &cookie);
	if (!stack) {
		if (ops->op == BPF_SOCK_OPS_RTT_CB)
			release(ops, sk);
		return 1;
	}
	/* Flags of others stay; nobody's are ever taken away. */
	if (ops->op != BPF_SOCK_OPS_RTT_CB)
		bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTT_CB_FLAG);
	read_key(ops, stack->endpoint, &key);
	govern(ops, sk, stack, &key);
	return 1;
}

/* Linux 6.12 and later let the first program see sockets that were there before it. */
static __always_inline void call_each_round_trip(struct tcp_sock *socket)
{
	int flags = 0;

	if (bpf_getsockopt(socket, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags)) ||
	    flags & BPF_SOCK_OPS_RTT_CB_FLAG)
		return;
	flags |= BPF_SOCK_OPS_RTT_CB_FLAG;
	bpf_setsockopt(socket, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &flags, sizeof(flags));
}

static __always_inline void read_key_of(struct sock_common *from, __u32 endpoint, struct subflow_key *key)
{
	if (from->skc_family == AF_INET) {
		map_ipv4(&key->local, from->skc_rcv_saddr);
	} else {
		key->local.word[0] = from->skc_v6_rcv_saddr.in6_u.u6_addr32[0];
		key->local.word[1] = from->skc_v6_rcv_saddr.in6_u.u6_addr32[1];
		key->local.word[2] = from->skc_v6_rcv_saddr.in6_u.u6_addr32[2];
		key->local.word[3] = from->skc_v6_rcv_saddr.in6_u.u6_addr32[3];
	}
	read_remote_address(from, &key->remote);
	key->local_port = bpf_htons(from->skc_num);
	key->remote_port = from->skc_dport;
	key->endpoint = endpoint;
}

SEC("iter/tcp")
int govern_existing(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	struct subflow_key key = {};
	struct tcp_sock *socket;
	struct stack *stack;
	__u64 cookie;

	if (!common || common->skc_state == TCP_LISTEN)
		return 0;
	socket = bpf_skc_to_tcp_sock(common);
	if (!socket)
		return 0;
	cookie = common->skc_net.net->net_cookie;
	stack = bpf_map_lookup_elem(&netns_endpoints, &cookie);
	if (!stack) {
		release(socket, socket);
		return 0;
	}
	call_each_round_trip(socket);
	read_key_of(common, stack->endpoint, &key);
	govern(socket, socket, stack, &key);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
