//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * from-endpoint: the ingress of the host's end of an endpoint's interface, which
 * is what the endpoint sends.
 */
#include "endpoint/run.h"

SEC("tc")
int from_endpoint(struct __sk_buff *skb)
{
	return run(skb, FROM_ENDPOINT);
}

char _license[] SEC("license") = "Dual BSD/GPL";
