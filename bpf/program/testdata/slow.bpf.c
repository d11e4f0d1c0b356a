// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* A schedule that paces every socket alike, so that it can be told from another. */
#include "braid_schedule.h"

#ifndef RATE
#define RATE 1000000
#endif

BRAID_SCHEDULE(slow)
{
	braid_pace(socket, RATE);
}

char _license[] SEC("license") = "Dual BSD/GPL";
