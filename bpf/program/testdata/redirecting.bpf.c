// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Would send the packet elsewhere, past what decides on it. */
#include "braid_program.h"


BRAID_BLOCK(redirecting)
{
	bpf_clone_redirect(skb, value, 0);
	return BRAID_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
