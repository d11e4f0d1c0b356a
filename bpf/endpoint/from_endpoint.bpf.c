//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * from-endpoint: the ingress of the host's end of an endpoint's interface, which
 * is what the endpoint sends.
 */
#include "endpoint/run.h"
#include "shared.h"

/* For Go. */
SHARED(enum, action_flag);
SHARED(enum, action_kind);
SHARED(enum, arrival);
SHARED(enum, desired_backup);
SHARED(enum, chain_limit);
SHARED(enum, direction);
SHARED(enum, event_rule);
SHARED(enum, event_type);
SHARED(enum, mechanism);
SHARED(enum, packet_type);
SHARED(enum, program_result);
SHARED(enum, program_slot);
SHARED(enum, record_limit);
SHARED(enum, result);
SHARED(enum, rule_enforces);
SHARED(enum, rule_needs);
SHARED(enum, scope);
SHARED(enum, selector_kind);
SHARED(enum, selector_result);
SHARED(enum, steady_limit);
SHARED(enum, subflow_ended);
SHARED(enum, subflow_known);
SHARED(enum, subflow_limit);
SHARED(enum, subflow_role);
SHARED(enum, why);

SEC("tc")
int from_endpoint(struct __sk_buff *skb)
{
	return run(skb, FROM_ENDPOINT);
}

char _license[] SEC("license") = "Dual BSD/GPL";
