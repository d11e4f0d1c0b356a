#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Fetches the newest kernel of a suite of Debian, "trixie" for example, into the
# cache, and prints its directory: vmlinuz, and lib/modules. Nothing is installed.
# What is in the cache stays: remove it to get a newer one.
set -euo pipefail

suite=$1
who=kernels
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/braid/kernels
out=$cache/$suite

# shellcheck source=hack/progress.sh
source "$here/../progress.sh"
# shellcheck source=hack/kernels/apt.sh
source "$here/apt.sh"

# packages are the names of those that make up the kernel: newer suites have
# the image, its modules and their lists apart.
packages() {
	local image
	image=$(depends linux-image-amd64 | grep -m 1 '^linux-image-')
	echo "$image"
	depends "$image" | grep -E '^linux-(base|binary|modules)-[0-9]' || true
}

depends() { apt_of_suites apt-cache depends "$1" | awk '$1 == "Depends:" { print $2 }'; }

download() {
	local names
	mapfile -t names < <(packages)
	cd "$work/packages"
	apt_of_suites apt-get -q -o APT::Sandbox::User=root download "${names[@]}" >&2
	local package
	for package in ./*.deb; do
		dpkg-deb -x "$package" "$work/tree"
	done
}

# arrange lays what packages have in different places where it is looked for.
arrange() {
	local image modules
	image=$(find "$work/tree" -name 'vmlinuz*' | head -n 1)
	modules=$(find "$work/tree" -type d -path '*/lib/modules' | head -n 1)
	mkdir -p "$work/kernel/lib"
	mv "$modules" "$work/kernel/lib/modules"
	# The newest suites keep the image among the modules.
	[[ -e $image ]] || image=$(find "$work/kernel" -name 'vmlinuz*')
	mv "$image" "$work/kernel/vmlinuz"
	depmod -b "$work/kernel" "$(ls "$work/kernel/lib/modules")"
}

main() {
	if [[ ! -e $out ]]; then
		mkdir -p "$cache"
		lock "$cache/.lock"
		if [[ ! -e $out ]]; then
			work=$(mktemp -d "$cache/.new.XXXXXX")
			trap 'end; rm -rf "$work"' EXIT
			trap 'exit 130' INT TERM HUP
			mkdir "$work/packages" "$work/tree"
			say "fetching the kernel of $suite"
			use_suites "$work/apt" "$suite"
			run "fetching the kernel of $suite" 900 download
			arrange
			mv "$work/kernel" "$out"
		fi
	fi
	echo "$out"
}

main
