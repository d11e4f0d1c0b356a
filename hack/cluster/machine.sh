#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Unpacks what a container needs to run a virtual machine, QEMU and nft of Debian's packages,
# into the cache, without installing any of it, and prints the directory: of QEMU only the
# emulator of x86, its libraries and the firmware of a machine that is given its kernel. On a
# release whose own QEMU is too old it takes that of its backports, as hack/kernels does.
set -euo pipefail

who=machine
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/braid/machine
out=$cache/root
work=

# shellcheck source=hack/progress.sh
source "$here/../progress.sh"
# shellcheck source=hack/kernels/apt.sh
source "$here/../kernels/apt.sh"
# shellcheck source=hack/kernels/unpack.sh
source "$here/../kernels/unpack.sh"

fetch() {
	local release
	release=$(. /etc/os-release && echo "$VERSION_CODENAME")
	use_suites "$work/apt" "$release" "$release-updates" "$release-backports"
	unpack "$release-backports" qemu-system-x86 nftables busybox
}

arrange() {
	fetch
	mkdir -p "$work"/root/{tmp,proc,sys,dev,run,lib64}
	loader=$(find_loader)
	local busybox
	busybox=$(cd "$work/all" && find ./bin ./usr/bin -name busybox | head -n 1)
	take "$(cd "$work/all" && find ./usr/bin -name qemu-system-x86_64 | cut -c 2-)" /usr/sbin/nft "${busybox#.}"
	cp --dereference "$work/all$loader" "$work/root/lib64/"
	local name
	for name in bios-256k.bin kvmvapic.bin linuxboot_dma.bin; do
		mkdir -p "$work/root/usr/share/qemu"
		cp --dereference "$(find "$work/all/usr/share" -name "$name" -type f | head -n 1)" "$work/root/usr/share/qemu/"
	done
}

cleanup() {
	end
	[[ -z $work ]] || rm -rf "$work"
}

main() {
	if [[ ! -e $out ]]; then
		mkdir -p "$cache"
		lock "$cache/.lock"
		trap cleanup EXIT
		trap 'exit 130' INT TERM HUP
		if [[ ! -e $out ]]; then
			work=$(mktemp -d "$cache/.work.XXXXXX")
			say "unpacking QEMU for a container, once"
			run "unpacking QEMU for a container" 900 arrange
			mv "$work/root" "$out"
		fi
	fi
	echo "$out"
}

main
