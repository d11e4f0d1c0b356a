#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds what a cluster with real kubelets needs beside its API server into the
# cache, and prints the directory that holds it: kube-controller-manager,
# kube-scheduler, kubelet, kube-proxy, containerd (about eight minutes on two
# cores). runc and the CNI plugins come from the system's packages.
set -euo pipefail

who=cluster
module=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# The versions in the two go.mod files.
kubernetes=$(awk '$1 == "require" && $2 == "k8s.io/kubernetes" { print $3 }' "$module/kubernetes/go.mod")
containerd=$(awk '$1 == "github.com/containerd/containerd/v2" || $2 == "github.com/containerd/containerd/v2" { print $NF; exit }' "$module/containerd/go.mod")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/braid/cluster
out=$cache/$kubernetes-$containerd
build_seconds=3600

# shellcheck source=hack/progress.sh
source "$module/../progress.sh"

build() {
	export CGO_ENABLED=0
	cd "$module/containerd"
	go build -trimpath -tags "no_btrfs no_devmapper no_zfs" -ldflags "-s -w" -o "$out.new/" \
		github.com/containerd/containerd/v2/cmd/{containerd,containerd-shim-runc-v2,ctr}
	cd "$module/kubernetes"
	local stamp=k8s.io/component-base/version minor=${kubernetes#v1.}
	go build -trimpath -ldflags "-s -w -X $stamp.gitVersion=$kubernetes -X $stamp.gitMajor=1 -X $stamp.gitMinor=${minor%%.*}" \
		-o "$out.new/" k8s.io/kubernetes/cmd/{kube-controller-manager,kube-scheduler,kubelet,kube-proxy}
}

main() {
	if [[ ! -d $out ]]; then
		need_go
		mkdir -p "$cache"
		lock "$cache/.lock"
		trap end EXIT
		trap 'exit 130' INT TERM HUP
		if [[ ! -d $out ]]; then
			rm -rf "$out.new"
			mkdir "$out.new"
			say "building Kubernetes $kubernetes and containerd $containerd from Go modules, once, some minutes"
			run "building Kubernetes $kubernetes and containerd $containerd" "$build_seconds" build
			mv -T "$out.new" "$out"
		fi
	fi
	echo "$out"
}

main
