#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds Cilium's agent, operator, CNI plugin and command line into the cache from its
# Go module, once, and prints the directory. The agent compiles its packet programs
# itself, from bpf/ there and with bin/clang. BGP is left out: the module of its speaker
# cannot be had. Of another such module only the name of an annotation is needed.
set -euo pipefail

who=cluster
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=v1.20.2
cache=${XDG_CACHE_HOME:-$HOME/.cache}/braid/cilium
out=$cache/$version
build_seconds=3600

# shellcheck source=hack/progress.sh
source "$here/../progress.sh"

leave_out() {
	sed -i '/cilium\/pkg\/bgp"$/d; /^\t\tbgp\.Cell,$/d' daemon/cmd/cells.go
	sed -i '/cilium\/operator\/pkg\/bgp"$/d; /^\t\tbgp\.Cell,$/d' operator/cmd/root.go
	sed -i '/restapi\/bgp"$/d; /BgpGetBgp/d' api/v1/server/server.go
	rm cilium-dbg/cmd/bgp*.go
	grep -rl --include='*.go' 'mcs-api/controllers"' . | xargs sed -i '/mcs-api\/controllers"$/d
		s|mcsapicontrollers\.DerivedServiceAnnotation|"multicluster.kubernetes.io/derived-service"|g'
}

build() {
	local source=$cache/source stamp=github.com/cilium/cilium/pkg/version.ciliumVersion
	rm -rf "$source"
	cp -r "$(GOFLAGS=-mod=mod go mod download -json "github.com/cilium/cilium@$version" | awk -F'"' '$2 == "Dir" { print $4 }')" "$source"
	chmod -R u+w "$source"
	cd "$source"
	leave_out
	export CGO_ENABLED=0
	local program
	for program in daemon:cilium-agent operator:cilium-operator-generic plugins/cilium-cni:cilium-cni cilium-dbg:cilium-dbg; do
		go build -trimpath -tags ipam_provider_operator -ldflags "-s -w -X $stamp=${version#v}" -o "$out.new/bin/${program##*:}" "./${program%%:*}"
	done
	cp -r bpf "$out.new/"
	ln -s "$(command -v clang-19)" "$out.new/bin/clang"
	cd "$cache"
	rm -rf "$source"
}

main() {
	"$here/../deps.sh" cilium
	if [[ ! -d $out ]]; then
		need_go
		mkdir -p "$cache"
		lock "$cache/.lock"
		trap end EXIT
		trap 'exit 130' INT TERM HUP
		if [[ ! -d $out ]]; then
			rm -rf "$out.new"
			mkdir -p "$out.new/bin"
			say "building Cilium $version from its Go module, once, some minutes"
			run "building Cilium $version" "$build_seconds" build
			mv -T "$out.new" "$out"
		fi
	fi
	echo "$out"
}

main
