#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Looks at what the images are made of: check.sh licences fails when a module that is
# compiled in has a licence that is not on the list; check.sh vulnerabilities fails when
# a program can reach a function with a known vulnerability. That needs the database at
# vuln.go.dev, or a copy of it that GOVULNDB names (file:///…); check.sh all does both,
# and says it where there is no database to ask.
set -euo pipefail

who=security
module=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# shellcheck source=hack/tool.sh
source "$module/../tool.sh"

# Those that allow distribution in binary form with no more than a notice.
allowed=Apache-2.0,BSD-2-Clause,BSD-3-Clause,ISC,MIT

licences() {
	local tool output
	tool=$(build_tool go-licenses github.com/google/go-licenses/v2 github.com/google/go-licenses/v2)
	if ! output=$("$tool" check ./cmd/... --ignore braid.dev/braid --allowed_licenses="$allowed" 2>&1); then
		echo "$output" >&2
		say "a module has a licence other than $allowed"
		exit 1
	fi
}

# scan PATTERN… looks at these programs or packages.
scan() {
	local tool
	tool=$(build_tool govulncheck golang.org/x/vuln golang.org/x/vuln/cmd/govulncheck)
	"$tool" -db "$database" "$@"
}

vulnerabilities() { scan ./cmd/...; }

# all asks the database about next to nothing first: where it cannot be reached, nobody need
# read all of what the programs import.
all() {
	local output
	licences
	if output=$(scan ./internal/room 2>&1 && vulnerabilities 2>&1); then
		return 0
	elif grep -q '^govulncheck: fetching vulnerabilities' <<<"$output"; then
		say "NOT LOOKED FOR VULNERABILITIES: $database cannot be reached; make vulnerabilities does it where it can"
	else
		echo "$output" >&2
		exit 1
	fi
}

database=${GOVULNDB:-https://vuln.go.dev}
cd "$module/../.."
case ${1:-} in
licences | vulnerabilities | all) "$1" ;;
*) echo "usage: check.sh licences|vulnerabilities|all" >&2 && exit 2 ;;
esac
