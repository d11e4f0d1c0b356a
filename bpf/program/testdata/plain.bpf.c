// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* A program for packets, but no block. */
#include "braid_program.h"

SEC("tc")
int plain(struct __sk_buff *skb)
{
	return skb->len > 100 ? 0 : 2;
}

char _license[] SEC("license") = "Dual BSD/GPL";
