// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Does nothing: what a call costs by itself. */
#include "braid_program.h"

BRAID_BLOCK(nothing)
{
	return BRAID_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
