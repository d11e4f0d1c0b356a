#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# packages.sh beside|cluster|waiting|light|network|alone PATTERN… lists the packages with tests
#   beside   that compute or ask an API server, and the packet programs', which hardly wait:
#            of their traffic nothing is timed, but for actiontest's;
#   cluster  that have a cluster with kubelets, which wants the processors in bursts;
#   waiting  that build networks of namespaces and wait there for what is to happen, however
#            long a busy machine takes for it: they compare no rates, or with wide margins;
#   light    that carry traffic and compare rates with little work: after those that wait, while
#            the cluster goes on;
#   network  that carry traffic in such networks: they mostly wait, and compare rates, so that
#            several go on at a time and nothing that computes;
#   alone    that flood, and look at what is left of the machine.
# Each package is in one of these. Those that take longest come first.
set -euo pipefail

usage="usage: packages.sh beside|cluster|waiting|light|network|alone PATTERN…"
kind=${1:?$usage}
[[ $kind =~ ^(beside|cluster|waiting|light|network|alone)$ ]] || { echo "$usage" >&2 && exit 2; }
shift
format='{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{range .TestImports}} {{.}}{{end}}{{range .XTestImports}} {{.}}{{end}}{{end}}'
all=$(go list -f "$format" "$@" | awk 'NF')
# Rules by a package's name, and by its name and what its tests import; the first that holds decides.
cluster='/e2e/cluster$'
alone='/e2e/(attacks|soak)$'
light='/(agent/(guard|narrow|pace|rules)|e2e/outages|hack/demo|internal/lab/(middlebox|network|traffic)|braid/proxy)$'
timed='/bpf/endpoint/actiontest$'
programs='^[^ ]*/bpf/'
networks='/internal/lab/(network|pair|traffic)( |$)|/hack/lab( |$)|^[^ ]*/hack/(bench|demo|lab)(/| |$)|^[^ ]*/e2e'
# What carries traffic, and wants to see what becomes of it rather than how fast it is.
told='/(agent/(chains|guests)|e2e/(faults|machines|spreading))$'
# What tells paths of slow links apart by wide margins. It runs last of what is beside the
# cluster, when little else is left.
margins='/e2e(/networks)?$'
# Other traffic is measured, and so is what some packages do without it.
rates='/internal/lab/traffic( |$)|/agent/transport/incasttest( |$)|^[^ ]*/(agent/(pace|schedule)|e2e/newpods|internal/lab/network)( |$)'
# Those that take longest, in the order of what they took. What runs at the end runs beside nothing.
longest='e2e/rules agent/datapath e2e/failures e2e/outages agent/guard agent/transport bpf/endpoint/actiontest e2e/newpods agent/pace agent/narrow proxy internal/lab/network e2e/machines e2e/faults agent/programs agent/announcements agent/health agent/pathmanager agent/guests agent/paths plugin bpf/uplink bpf/endpoint build controllers charts internal/lab/apiserver agent/identity bpf/guest'
awk -v wanted="$kind" -v cluster="$cluster" -v alone="$alone" -v light="$light" -v timed="$timed" -v programs="$programs" \
	-v networks="$networks" -v told="$told" -v margins="$margins" -v rates="$rates" -v longest="$longest" '
	function kind() {
		if ($1 ~ cluster) return "cluster"
		if ($1 ~ alone) return "alone"
		if ($1 ~ light) return "light"
		if ($1 ~ timed) return "network"
		if ($0 ~ programs || $0 !~ networks) return "beside"
		if ($1 ~ told || $1 ~ margins || $0 !~ rates) return "waiting"
		return "network"
	}
	# 0 for what is to begin first.
	function place(i) {
		if ($1 ~ margins) return 99
		for (i in order) if ($1 ~ "/" order[i] "$") return i - 1
		return 98
	}
	BEGIN { split(longest, order, " ") }
	kind() == wanted { print place(), $1 }' <<<"$all" | sort -s -n -k 1,1 | cut -d ' ' -f 2
