//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * again: gives a test's packet its window and its checksum back, and goes on to the
 * program that is measured. BPF_PROG_TEST_RUN keeps what a program wrote for the next
 * repeat: without this, a program that writes only what has to be changed would write
 * once in all repeats. Each repeat is the next segment of the stream, for the same one
 * again would be one that TCP repeats; nothing that is measured looks whether the
 * checksum is right. An empty program behind it is what the others are measured against.
 */
#include "segment.h"

volatile const __be16 window;
volatile const __u16 check;
volatile const __u32 step; /* from one segment to the next; 0: the same again and again */

__u32 sequence;

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} measured SEC(".maps");

SEC("tc")
int again(struct __sk_buff *skb)
{
	struct headers headers;

	if (parse(skb, &headers)) {
		headers.tcp->window = window;
		headers.tcp->check = check;
		headers.tcp->seq = bpf_htonl(sequence);
		sequence += step;
	}
	bpf_tail_call(skb, &measured, 0);
	return TCX_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
