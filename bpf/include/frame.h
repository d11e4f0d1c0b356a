/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A frame as a hook has it, for what decides alike at TC and at a NIC's XDP hook: the
 * headers are read by the same functions, and only these here differ. At TC a frame may be
 * several segments of GSO and has its tag of a VLAN beside it; at XDP it is as the NIC's
 * driver has it. A program at XDP defines AT_XDP before it includes anything.
 */
#ifndef BRAID_FRAME_H
#define BRAID_FRAME_H

#include "kernel.h"

#ifdef AT_XDP
typedef struct xdp_md hook_frame;
#else
typedef struct __sk_buff hook_frame;
#endif

static __always_inline void *frame_begin(const hook_frame *frame)
{
	return (void *)(unsigned long)frame->data;
}

static __always_inline void *frame_end(const hook_frame *frame)
{
	return (void *)(unsigned long)frame->data_end;
}

#ifdef AT_XDP

static __always_inline __u32 frame_length(hook_frame *frame)
{
	return bpf_xdp_get_buff_len(frame);
}

/* The protocol above Ethernet, that of a tag where there is one; 0 where it cannot be read. */
static __always_inline __be16 frame_protocol(hook_frame *frame)
{
	struct ethhdr *ethernet = frame_begin(frame);

	return (void *)(ethernet + 1) > frame_end(frame) ? 0 : ethernet->h_proto;
}

static __always_inline long load_bytes(hook_frame *frame, __u32 offset, void *to, __u32 length)
{
	return bpf_xdp_load_bytes(frame, offset, to, length);
}

/* True when the first bytes of the frame can be read in place: all headers are, of a driver that works. */
static __always_inline int readable(hook_frame *frame, __u32 length)
{
	return frame->data_end - frame->data >= length;
}

#else

static __always_inline __u32 frame_length(const hook_frame *frame)
{
	return frame->len;
}

static __always_inline __be16 frame_protocol(const hook_frame *frame)
{
	return frame->protocol;
}

static __always_inline long load_bytes(hook_frame *frame, __u32 offset, void *to, __u32 length)
{
	return bpf_skb_load_bytes(frame, offset, to, length);
}

/*
 * True when the first bytes of the frame can be read in place. Some drivers leave
 * part of the headers outside of the linear area; they are brought in, and never
 * more than is read: TCP keeps payload outside, and to pull that in would cost
 * each segment a new head.
 */
static __always_inline int readable(hook_frame *frame, __u32 length)
{
	if (likely(frame->data_end - frame->data >= length))
		return 1;
	return length <= frame->len && !bpf_skb_pull_data(frame, length);
}

#endif

#endif
