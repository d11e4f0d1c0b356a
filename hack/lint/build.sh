#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds golangci-lint from this module into the cache, once for each version,
# and prints its path (about three minutes on two cores).
set -euo pipefail

who=lint
module=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
package=github.com/golangci/golangci-lint/v2
version=$(awk -v package="$package" '$1 == package { print $2 }' "$module/go.mod")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/braid/lint
out=$cache/golangci-lint-$version

# shellcheck source=hack/progress.sh
source "$module/../progress.sh"

build() {
	cd "$module"
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$out.new" "$package/cmd/golangci-lint"
}

main() {
	if [[ ! -x $out ]]; then
		need_go
		mkdir -p "$cache"
		lock "$cache/.lock"
		trap end EXIT
		trap 'exit 130' INT TERM HUP
		if [[ ! -x $out ]]; then
			say "building golangci-lint $version from Go modules, once, some minutes"
			run "building golangci-lint $version" 1800 build
			mv "$out.new" "$out"
		fi
	fi
	echo "$out"
}

main
