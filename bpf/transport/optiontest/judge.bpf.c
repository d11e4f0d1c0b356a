//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Judges options as they stand in a packet, many in one run: a program on sockets cannot
 * be run for a test. Each place has an option of kind 253, one of kind 28, and a byte
 * that says how long the first one claims to be, and one that says which are there.
 */
#include "packet.h"
#include "requests.h"

enum place {
	PLACES = 64,
	PLACE_BYTES = 48,
	PLACE_TIMEOUT = 40,
	PLACE_LENGTH = 44,
	PLACE_PRESENT = 45, /* 1: the requests, 2: the timeout */
};

SHARED(enum, place);

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct acceptance);
} acceptances SEC(".maps");

struct verdicts {
	struct verdict of[PLACES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct verdicts);
} judged SEC(".maps");

__noinline int judge_place(struct __sk_buff *skb, __u32 place)
{
	struct acceptance *acceptance;
	struct requests requests = {};
	struct verdict verdict = {};
	__u8 bytes[PLACE_BYTES];
	struct verdicts *out;
	__u32 zero = 0;

	acceptance = bpf_map_lookup_elem(&acceptances, &zero);
	out = bpf_map_lookup_elem(&judged, &zero);
	if (!acceptance || !out || place >= PLACES || bpf_skb_load_bytes(skb, place * PLACE_BYTES, bytes, sizeof(bytes)))
		return 1;
	if (bytes[PLACE_PRESENT] & 1 && bytes[PLACE_LENGTH] <= OPTION_SPACE)
		read_requests(bytes, bytes[PLACE_LENGTH], &requests);
	if (bytes[PLACE_PRESENT] & 2)
		read_user_timeout(bytes + PLACE_TIMEOUT, &requests);
	judge(acceptance, &requests, &verdict);
	out->of[place] = verdict;
	return 0;
}

SEC("tc")
int judge_options(struct __sk_buff *skb)
{
	__u32 place;
	int failed = 0;

	for (place = 0; place < PLACES; place++)
		failed += judge_place(skb, place);
	return failed;
}

char _license[] SEC("license") = "Dual BSD/GPL";
