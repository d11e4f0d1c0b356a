// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A congestion control, a schedule and a packet program with one map: the packet program
 * writes the window that the congestion control keeps.
 */
#ifdef ON_PACKETS
#include "braid_program.h"
#elif defined(SCHEDULING)
#include "braid_schedule.h"
#else
#include "kernel.h"
#endif

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} shared_window SEC(".maps");

#ifdef ON_PACKETS
BRAID_BLOCK(set_window_of_all)
{
	__u32 zero = 0, *window = bpf_map_lookup_elem(&shared_window, &zero);

	if (window)
		*window = value ? value : 3;
	return BRAID_NEXT;
}
#elif defined(SCHEDULING)
BRAID_SCHEDULE(look_at_window)
{
	__u32 zero = 0, *window = bpf_map_lookup_elem(&shared_window, &zero);

	if (window && *window)
		braid_pace(socket, *window * 1000000);
#ifdef WRITING
	if (window)
		*window = 0;
#endif
}
#else
struct tcp_sock {
	__u32 snd_cwnd;
} __attribute__((preserve_access_index));

struct tcp_congestion_ops {
	__u32 (*ssthresh)(void *sk);
	void (*cong_avoid)(void *sk, __u32 ack, __u32 acked);
	__u32 (*undo_cwnd)(void *sk);
	char name[16];
};

SEC("struct_ops/window_ssthresh")
__u32 window_ssthresh(__u64 *arguments)
{
	struct tcp_sock *tcp = (void *)arguments[0];

	return tcp->snd_cwnd;
}

SEC("struct_ops/window_cong_avoid")
void window_cong_avoid(__u64 *arguments)
{
	struct tcp_sock *tcp = (void *)arguments[0];
	__u32 zero = 0, *window = bpf_map_lookup_elem(&shared_window, &zero);

	if (window && *window)
		tcp->snd_cwnd = *window;
#ifdef WRITING
	if (window)
		*window = 0;
#endif
}

SEC("struct_ops/window_undo_cwnd")
__u32 window_undo_cwnd(__u64 *arguments)
{
	struct tcp_sock *tcp = (void *)arguments[0];

	return tcp->snd_cwnd;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops window = {
	.ssthresh = (void *)window_ssthresh,
	.cong_avoid = (void *)window_cong_avoid,
	.undo_cwnd = (void *)window_undo_cwnd,
	.name = NAME,
};
#endif

char _license[] SEC("license") = "Dual BSD/GPL";
