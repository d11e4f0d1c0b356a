#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# packages.sh beside|cluster|network|alone PATTERN… lists the packages with tests
#   beside   that compute or ask an API server, and the packet programs', which hardly wait:
#            of their traffic nothing is timed, but for actiontest's;
#   cluster  that have a cluster with kubelets, which wants the processors in bursts;
#   network  that build networks of namespaces and carry traffic: they mostly wait, and
#            compare rates, so that several go on at a time and nothing that computes;
#   alone    that flood, and look at what is left of the machine.
# Those that take longest come first.
set -euo pipefail

usage="usage: packages.sh beside|cluster|network|alone PATTERN…"
kind=${1:?$usage}
shift
format='{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{range .TestImports}} {{.}}{{end}}{{range .XTestImports}} {{.}}{{end}}{{end}}'
all=$(go list -f "$format" "$@" | awk 'NF')
cluster='^[^ ]*/e2e/cluster( |$)'
alone='^[^ ]*/e2e/(attacks|soak)( |$)'
network='/internal/lab/(network|pair|traffic)( |$)|/hack/lab( |$)|^[^ ]*/hack/(bench|demo|lab)(/| |$)|^[^ ]*/e2e'
longest='/(e2e/(faults|machines)|agent/(datapath|pace|guard)|bpf/endpoint/actiontest)$'
programs='^[^ ]*/bpf/'
timed='^[^ ]*/bpf/endpoint/actiontest( |$)'
case $kind in
cluster) grep -E "$cluster" <<<"$all" || true ;;
alone) grep -E "$alone" <<<"$all" || true ;;
network) grep -E "$network" <<<"$all" | grep -vE "$alone|$cluster|$programs" || true; grep -E "$timed" <<<"$all" || true ;;
beside) grep -vE "$network" <<<"$all" || true; grep -E "$network" <<<"$all" | grep -E "$programs" | grep -vE "$timed" || true ;;
*) echo "$usage" >&2 && exit 2 ;;
esac | cut -d ' ' -f 1 | awk -v longest="$longest" '
	/\/e2e$/ { print; next }
	$0 ~ longest { early = early $0 "\n"; next }
	{ rest = rest $0 "\n" }
	END { printf "%s%s", early, rest }'
