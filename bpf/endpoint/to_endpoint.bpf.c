//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * to-endpoint: the egress of the host's end of an endpoint's interface, which is
 * what the endpoint receives.
 */
#include "endpoint/run.h"

SEC("tc")
int to_endpoint(struct __sk_buff *skb)
{
	return run(skb, TO_ENDPOINT);
}

char _license[] SEC("license") = "Dual BSD/GPL";
