#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# packages.sh beside|network|alone PATTERN… lists the packages with tests that compute or
# ask an API server, those that build networks of namespaces and carry traffic, which
# mostly wait, and those that compare rates with each other, or fill a table that the whole
# machine has once, and need the machine for themselves. Those that take longest come first.
set -euo pipefail

usage="usage: packages.sh beside|network|alone PATTERN…"
kind=${1:?$usage}
shift
format='{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{range .TestImports}} {{.}}{{end}}{{range .XTestImports}} {{.}}{{end}}{{end}}'
all=$(go list -f "$format" "$@" | awk 'NF')
alone='^[^ ]*/e2e(/attacks|/soak)?( |$)'
network='/internal/lab/(network|pair|traffic)( |$)|/hack/lab( |$)|^[^ ]*/hack/(bench|demo|lab)(/| |$)|^[^ ]*/e2e'
case $kind in
alone) grep -E "$alone" <<<"$all" || true ;;
network) grep -E "$network" <<<"$all" | grep -vE "$alone" || true ;;
beside) grep -vE "$network" <<<"$all" || true ;;
*) echo "$usage" >&2 && exit 2 ;;
esac | cut -d ' ' -f 1 | awk '/\/e2e/ { print; next } { rest = rest $0 "\n" } END { printf "%s", rest }'
