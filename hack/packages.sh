#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# packages.sh beside|alone PATTERN… lists the packages with tests that run beside other
# work, or those that need the machine for themselves: these build networks of
# namespaces, carry traffic or measure.
set -euo pipefail

usage="usage: packages.sh beside|alone PATTERN…"
kind=${1:?$usage}
shift
format='{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{range .TestImports}} {{.}}{{end}}{{range .XTestImports}} {{.}}{{end}}{{end}}'
all=$(go list -f "$format" "$@" | awk 'NF')
quiet='/internal/lab/(network|pair|traffic)( |$)|/hack/lab( |$)|^[^ ]*/hack/(bench|demo|lab)(/| |$)|^[^ ]*/e2e'
case $kind in
alone) grep -E "$quiet" <<<"$all" || true ;;
beside) grep -vE "$quiet" <<<"$all" || true ;;
*) echo "$usage" >&2 && exit 2 ;;
esac | cut -d ' ' -f 1
