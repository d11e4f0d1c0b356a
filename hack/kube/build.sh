#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes kube-apiserver, etcd and kubectl available in the cache and prints the
# directory that holds them. Downloads them as envtest does where that works,
# else builds them from this module (about four minutes on two cores).
set -euo pipefail

# The version of k8s.io/kubernetes in go.mod; internal/lab/apiserver names it too.
version=1.36.3
setup_envtest=sigs.k8s.io/controller-runtime/tools/setup-envtest@v0.25.1
# Where setup-envtest looks first. A machine that cannot reach it must not wait
# long before the build begins, and a slow download must not take longer than one.
index_host=raw.githubusercontent.com
reach_seconds=5
download_seconds=120
build_seconds=3600

who=kube
module=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/braid/kube
out=$cache/v$version
work=

# shellcheck source=hack/progress.sh
source "$module/../progress.sh"

complete() {
	local binary
	for binary in kube-apiserver etcd kubectl; do
		[[ -x $1/$binary ]] || return 1
	done
}

reachable() {
	[[ -n ${https_proxy:-${HTTPS_PROXY:-}} ]] ||
		timeout "$reach_seconds" bash -c ": </dev/tcp/$index_host/443" 2>/dev/null
}

download() {
	exec 2>"$work/download.log"
	GOBIN=$work/tool go install "$setup_envtest" &&
		"$work/tool/setup-envtest" use "${version%.*}.x" --bin-dir "$work/envtest" -p path >"$work/path"
}

try_download() {
	local path
	reachable || return 1
	say "downloading Kubernetes ${version%.*}, at most $download_seconds s"
	mkdir "$work/tool" "$work/envtest"
	if ! run "downloading Kubernetes ${version%.*}" "$download_seconds" download; then
		say "the download failed or took too long: $(tail -n 1 "$work/download.log")"
		return 1
	fi
	path=$(<"$work/path")
	complete "$path" && chmod -R u+w "$path" && mv -T "$path" "$work/bin"
}

build() {
	local stamp=k8s.io/component-base/version minor=${version%.*}
	local flags="-s -w -X $stamp.gitVersion=v$version -X $stamp.gitMajor=${version%%.*} -X $stamp.gitMinor=${minor#*.}"
	cd "$module"
	export CGO_ENABLED=0
	go build -trimpath -ldflags "$flags" -o "$work/bin/" k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kubectl
	go build -trimpath -ldflags "-s -w" -o "$work/bin/etcd" ./etcd
}

make_binaries() {
	work=$(mktemp -d "$cache/.work.XXXXXX")
	if ! try_download; then
		say "no download; building Kubernetes v$version and etcd from Go modules, once, some minutes"
		mkdir "$work/bin"
		run "building Kubernetes v$version" "$build_seconds" build
	fi
	rm -rf "$out"
	mv -T "$work/bin" "$out"
	say "ready: $("$out/kube-apiserver" --version), $("$out/etcd" --version | head -1)"
}

cleanup() {
	end
	[[ -z $work ]] || { chmod -R u+w "$work" && rm -rf "$work"; } || true
}

main() {
	if ! complete "$out"; then
		need_go
		mkdir -p "$cache"
		lock "$cache/.lock"
		trap cleanup EXIT
		trap 'exit 130' INT TERM HUP
		# Left behind by a run that was killed; nobody else holds the lock.
		rm -rf "$cache"/.work.*
		complete "$out" || make_binaries
	fi
	echo "$out"
}

main
