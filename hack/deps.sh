#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what the lab needs from the packages of Debian or
# Ubuntu; with the argument "generate" also what compiles the packet programs, with
# "browser" also what the tests of the plugin's page need, with "cilium" what its agent
# runs.
# Does nothing when all is there.
set -euo pipefail

who=deps
# shellcheck source=hack/progress.sh
source "$(dirname "${BASH_SOURCE[0]}")/progress.sh"

# command:package, or file:package.
needed=(ip:iproute2 ethtool:ethtool sysctl:procps nft:nftables nsenter:util-linux git:git
	runc:runc /usr/lib/cni/ptp:containernetworking-plugins depmod:kmod
	/etc/ssl/certs/ca-certificates.crt:ca-certificates)
# The committed programs are compiled by this version; another one makes others.
compiler=(clang-19:clang-19 llvm-strip-19:llvm-19)
browser=(chromium:chromium)
cilium=(clang-19:clang-19 iptables:iptables ipset:ipset)

there() {
	# Debian keeps some of these out of the PATH of users.
	[[ $1 == /* ]] && [[ -e $1 ]] || PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null
}

missing() {
	local pair
	for pair in "$@"; do
		there "${pair%%:*}" || echo "${pair##*:}"
	done
}

install() {
	export DEBIAN_FRONTEND=noninteractive
	apt-get -q -o DPkg::Lock::Timeout=300 update &&
		apt-get -q -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 install -y --no-install-recommends "$@"
}

main() {
	[[ ${1:-} != generate ]] || needed+=("${compiler[@]}")
	[[ ${1:-} != browser ]] || needed+=("${browser[@]}")
	[[ ${1:-} != cilium ]] || needed+=("${cilium[@]}")
	local packages
	mapfile -t packages < <(missing "${needed[@]}")
	((${#packages[@]})) || return 0
	if ! command -v apt-get >/dev/null; then
		say "missing: ${packages[*]} (names of Debian's packages); install them by this system's own means"
		exit 1
	fi
	if ((EUID != 0)); then
		say "missing: ${packages[*]}; install them as root: apt-get install ${packages[*]}"
		exit 1
	fi
	trap end EXIT
	trap 'exit 130' INT TERM HUP
	say "installing ${packages[*]}"
	run "installing ${packages[*]}" 900 install "${packages[@]}" >&2
	mapfile -t packages < <(missing "${needed[@]}")
	if ((${#packages[@]})); then
		say "still missing after the installation: ${packages[*]}"
		exit 1
	fi
}

main "$@"
