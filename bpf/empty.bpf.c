//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* empty: does nothing; what the cost of the others is measured against. */
#include "kernel.h"

SEC("tc")
int empty(struct __sk_buff *skb)
{
	(void)skb;
	return TCX_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
