//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * What is attached to interfaces by TCX links, and where among the programs there. The
 * kernel's own question for that takes the lock under which interfaces are made and
 * changed (rtnl), which a node that starts pods holds for most of its time.
 */
#include "kernel_structs.h"
#include "shared.h"

/* What is read of the kernel's structures; their real layout is found on loading. */
struct bpf_prog_aux {
	__u32 id;
} __attribute__((preserve_access_index));

struct bpf_prog {
	struct bpf_prog_aux *aux;
} __attribute__((preserve_access_index));

enum bpf_link_type {
	BPF_LINK_TYPE_TCX = 11,
};

struct bpf_link {
	__u32 id;
	enum bpf_link_type type;
	struct bpf_prog *prog;
} __attribute__((preserve_access_index));

struct bpf_mprog_fp {
	struct bpf_prog *prog;
} __attribute__((preserve_access_index));

enum {
	BPF_MPROG_MAX = 64,
};

/* The programs of a hook, in their order, and a null pointer after the last. */
struct bpf_mprog_entry {
	struct bpf_mprog_fp fp_items[BPF_MPROG_MAX];
} __attribute__((preserve_access_index));

struct net_device {
	int ifindex;
	struct bpf_mprog_entry *tcx_ingress;
	struct bpf_mprog_entry *tcx_egress;
} __attribute__((preserve_access_index));

struct tcx_link {
	struct bpf_link link;
	struct net_device *dev; /* null once detached, or when the interface is gone */
} __attribute__((preserve_access_index));

struct bpf_iter__bpf_link {
	struct bpf_iter_meta *meta;
	struct bpf_link *link;
} __attribute__((preserve_access_index));

#define READ(to, from) (bpf_probe_read_kernel(&(to), sizeof(to), &(from)) == 0)

struct attachment {
	__u32 link;
	__u32 program;
	__u32 interface; /* its index; 0: detached */
	__u32 before;    /* the program right before this one, of the same hook; 0: this is the first */
	__u32 last;      /* 1: no program comes after this one */
	__u32 placed;    /* 1: the place is known */
};

/* For Go. */
SHARED(struct, attachment);

static __u32 id_of(struct bpf_prog *program)
{
	struct bpf_prog_aux *aux;
	__u32 id;

	if (!program || !READ(aux, program->aux) || !READ(id, aux->id))
		return 0;
	return id;
}

/* Finds a program's place at a hook. A list that changes meanwhile leaves it unknown. */
static __always_inline void find_place(struct attachment *found, struct bpf_mprog_entry *hook, struct bpf_prog *own)
{
	struct bpf_prog *before = (void *)0, *program, *after = (void *)0;
	int at;

	if (!hook)
		return;
	for (at = 0; at < BPF_MPROG_MAX; at++) {
		if (!READ(program, hook->fp_items[at].prog) || !program)
			return;
		if (program == own) {
			found->before = id_of(before);
			found->last = at + 1 == BPF_MPROG_MAX || (READ(after, hook->fp_items[at + 1].prog) && !after);
			found->placed = !before || found->before;
			return;
		}
		before = program;
	}
}

SEC("iter/bpf_link")
int list_attachments(struct bpf_iter__bpf_link *ctx)
{
	struct seq_file *seq = ctx->meta->seq;
	struct bpf_link *link = ctx->link;
	struct bpf_mprog_entry *ingress, *egress;
	struct attachment found = {};
	struct net_device *device;
	struct bpf_prog *program;

	if (!link || link->type != BPF_LINK_TYPE_TCX)
		return 0;
	if (!READ(program, link->prog) || !READ(device, ((struct tcx_link *)link)->dev))
		return 0;
	found.link = link->id;
	found.program = id_of(program);
	if (device && READ(found.interface, device->ifindex) && READ(ingress, device->tcx_ingress) && READ(egress, device->tcx_egress)) {
		find_place(&found, ingress, program);
		if (!found.placed)
			find_place(&found, egress, program);
	}
	bpf_seq_write(seq, &found, sizeof(found));
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
