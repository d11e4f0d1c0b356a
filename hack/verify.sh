#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Generates everything again and fails when that changes a file: then somebody
# changed a source without `make generate`, or generated with other tools.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

generated() {
	find api charts config bpf docs hack/bench/baseline \( -name 'zz_generated.*.go' -o -path 'config/crd/braid.dev_*.yaml' \
		-o -path 'config/rbac/*_role.yaml' -o -name '*_bpfel.go' -o -name '*_bpfel.o' \
		-o -path 'charts/braid/files/*.yaml' -o -path docs/api.md \) -type f -exec sha256sum {} + | sort -k 2
}

before=$(generated)
make --no-print-directory generate
after=$(generated)
if [[ $before != "$after" ]]; then
	echo "verify: these generated files do not match their sources; they are right now, commit them:" >&2
	diff <(echo "$before") <(echo "$after") | awk '/^[<>]/ { print "  " $3 }' | sort -u >&2
	exit 1
fi
if ! go mod tidy -diff; then
	echo "verify: go.mod does not match the imports: run go mod tidy" >&2
	exit 1
fi
echo "verify: $(wc -l <<<"$after") generated files match their sources"
