#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds flanneld into the cache from its Go module, once, and prints its path. Two of
# its backends are left out: udp needs cgo, and tencentvpc's module cannot be had.
set -euo pipefail

who=cluster
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=v0.28.10
cache=${XDG_CACHE_HOME:-$HOME/.cache}/braid/flannel
out=$cache/flanneld-$version
build_seconds=1800

# shellcheck source=hack/progress.sh
source "$here/../progress.sh"

build() {
	local source=$cache/source
	rm -rf "$source"
	cp -r "$(GOFLAGS=-mod=mod go mod download -json "github.com/flannel-io/flannel@$version" | awk -F'"' '$2 == "Dir" { print $4 }')" "$source"
	chmod -R u+w "$source"
	cd "$source"
	sed -i '/backend\/tencentvpc"/d; /backend\/udp"/d' main.go
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$out.new" .
	cd "$cache"
	rm -rf "$source"
}

main() {
	if [[ ! -x $out ]]; then
		need_go
		mkdir -p "$cache"
		lock "$cache/.lock"
		trap end EXIT
		trap 'exit 130' INT TERM HUP
		if [[ ! -x $out ]]; then
			say "building flanneld $version from its Go module, once, some minutes"
			run "building flanneld $version" "$build_seconds" build
			mv "$out.new" "$out"
		fi
	fi
	echo "$out"
}

main
