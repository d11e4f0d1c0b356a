// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Selects by what it is told of the subflow and of the packet. */
#include "braid_program.h"

BRAID_BLOCK(token)
{
	return subflow->token == (__u32)value ? BRAID_MATCH : BRAID_NO_MATCH;
}

BRAID_BLOCK(direction)
{
	return packet->direction == value ? BRAID_MATCH : BRAID_NO_MATCH;
}

BRAID_BLOCK(sent)
{
	return subflow->traffic[FROM_ENDPOINT].bytes >= (__u64)value ? BRAID_MATCH : BRAID_NO_MATCH;
}

BRAID_BLOCK(remote_port)
{
	return bpf_ntohs(packet->key.remote_port) == value ? BRAID_MATCH : BRAID_NO_MATCH;
}

char _license[] SEC("license") = "Dual BSD/GPL";
