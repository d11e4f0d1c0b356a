/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What Go shares with the programs beside the keys and values of maps. The objects
 * describe no type that nothing refers to: SHARED refers to one, from a section that
 * nobody loads. Go's constants are generated from it by hack/enums, its structures by
 * bpf2go's -type.
 */
#ifndef BRAID_SHARED_H
#define BRAID_SHARED_H

#include "kernel.h"

#define SHARED(kind, name) const kind name *const shared_##name SEC("shared_types") = 0

#endif
