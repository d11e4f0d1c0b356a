// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Returns what is no verdict, and writes over its copies. */
#include "braid_program.h"

BRAID_BLOCK(wrong)
{
	packet->transport = 3;
	packet->network = 0xffff;
	return 1234;
}

char _license[] SEC("license") = "Dual BSD/GPL";
