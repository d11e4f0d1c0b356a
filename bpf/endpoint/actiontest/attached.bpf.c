//go:build ignore
// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The endpoint half, both directions in one object: for the tests that attach it
 * to the interface of an endpoint with connections of the kernel's own.
 */
#include "endpoint/run.h"

SEC("tc")
int from_attached(struct __sk_buff *skb)
{
	return run(skb, FROM_ENDPOINT);
}

SEC("tc")
int to_attached(struct __sk_buff *skb)
{
	return run(skb, TO_ENDPOINT);
}

char _license[] SEC("license") = "Dual BSD/GPL";
