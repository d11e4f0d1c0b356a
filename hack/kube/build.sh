#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes kube-apiserver, etcd and kubectl available in the cache and prints the
# directory that holds them. Downloads them as envtest does where that works,
# else builds them from this module (about four minutes on two cores).
set -euo pipefail

# The version of k8s.io/kubernetes in go.mod; hack/apiserver names it too.
version=1.36.3
setup_envtest=sigs.k8s.io/controller-runtime/tools/setup-envtest@v0.25.1
# A machine without internet must not wait long before the build begins.
download_seconds=${BRAID_KUBE_DOWNLOAD_SECONDS:-30}
build_seconds=3600

module=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/braid/kube
out=$cache/v$version
work= job= watcher=

say() { echo "kube: $*" >&2; }

complete() {
	local binary
	for binary in kube-apiserver etcd kubectl; do
		[[ -x $1/$binary ]] || return 1
	done
}

# run runs a command in a process group of its own, ends the group after so
# many seconds or when this script is gone, and says every ten seconds how
# long it has been.
run() {
	local what=$1 seconds=$2 code=0
	shift 2
	set -m
	"$@" &
	job=$!
	set +m
	watch "$what" "$seconds" 9>&- &
	watcher=$!
	wait "$job" || code=$?
	end
	return "$code"
}

# end ends the running command, if any, and its watcher.
end() {
	[[ -z $job ]] || kill -- "-$job" 2>/dev/null || true
	[[ -z $watcher ]] || kill "$watcher" 2>/dev/null || true
	wait
	job= watcher=
}

watch() {
	local what=$1 limit=$2 start=$SECONDS spent
	while sleep 1; do
		spent=$((SECONDS - start))
		if ((spent >= limit)) || ! kill -0 $$ 2>/dev/null; then
			kill -- "-$job" 2>/dev/null || true
			return
		fi
		((spent % 10)) || say "$what: $spent s"
	done
}

download() {
	GOBIN=$work/tool go install "$setup_envtest" &&
		"$work/tool/setup-envtest" use "${version%.*}.x" --bin-dir "$work/envtest" -p path >"$work/path"
}

try_download() {
	((download_seconds > 0)) || return 1
	local path
	mkdir "$work/tool" "$work/envtest"
	run "downloading Kubernetes ${version%.*}" "$download_seconds" download 2>"$work/download.log" || return 1
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
	say "looking for Kubernetes ${version%.*} to download, at most $download_seconds s"
	if ! try_download; then
		say "no download; building Kubernetes v$version and etcd from Go modules, once, some minutes"
		mkdir "$work/bin"
		run "building Kubernetes v$version" "$build_seconds" build
	fi
	rm -rf "$out"
	mv -T "$work/bin" "$out"
	say "ready: $("$out/kube-apiserver" --version), $("$out/etcd" --version | head -1)"
}

lock() {
	exec 9>"$cache/.lock"
	flock --nonblock 9 && return
	say "another run is at it; waiting for it"
	flock 9
}

cleanup() {
	end
	[[ -z $work ]] || { chmod -R u+w "$work" && rm -rf "$work"; } || true
}

main() {
	if ! complete "$out"; then
		command -v go >/dev/null || { say "go is not in PATH: install Go from https://go.dev/dl/"; exit 1; }
		mkdir -p "$cache"
		lock
		trap cleanup EXIT
		trap 'exit 130' INT TERM HUP
		# Left behind by a run that was killed; nobody else holds the lock.
		rm -rf "$cache"/.work.*
		complete "$out" || make_binaries
	fi
	echo "$out"
}

main
