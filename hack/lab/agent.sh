#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Unpacks what a lab's virtual machine needs to have QEMU's guest agent, that agent, ip and three
# of the core utilities of Debian's packages of a suite, "trixie" for example, into the cache, without installing any of
# it, and prints the directory.
set -euo pipefail

suite=$1
who=agent
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/braid/guestagent
out=$cache/$suite-files # older ones lack tools
work=

# shellcheck source=hack/progress.sh
source "$here/../progress.sh"
# shellcheck source=hack/kernels/apt.sh
source "$here/../kernels/apt.sh"
# shellcheck source=hack/kernels/unpack.sh
source "$here/../kernels/unpack.sh"

arrange() {
	local path
	use_suites "$work/apt" "$suite"
	unpack "$suite" qemu-guest-agent iproute2 coreutils
	mkdir -p "$work"/root/{usr/bin,usr/sbin,lib64}
	loader=$(find_loader)
	for path in $(cd "$work/all" && find . -path '*bin/qemu-ga' -o -path '*bin/ip' -o -path '*bin/cat' -o -path '*bin/tee' -o -path '*bin/rm' | cut -c 2-); do
		[[ -L $work/all$path ]] || take "$path"
	done
	cp --dereference "$work/all$loader" "$work/root/lib64/"
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
			say "unpacking a guest agent of $suite, once"
			run "unpacking a guest agent of $suite" 900 arrange
			mv "$work/root" "$out"
		fi
	fi
	echo "$out"
}

main
