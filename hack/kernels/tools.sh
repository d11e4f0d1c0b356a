#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what boots kernels: QEMU and kmod. Guests of old versions of QEMU
# corrupt themselves under load where there is no KVM, so on a release whose own
# one is older it takes the one of its backports.
set -euo pipefail

oldest=9
who=kernels
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# shellcheck source=hack/progress.sh
source "$here/../progress.sh"
# shellcheck source=hack/kernels/apt.sh
source "$here/apt.sh"

complete() {
	command -v qemu-system-x86_64 depmod dpkg-deb xz >/dev/null &&
		(($(qemu-system-x86_64 --version | sed -En '1s/.* version ([0-9]+).*/\1/p') >= oldest))
}

install() {
	local release
	release=$(. /etc/os-release && echo "$VERSION_CODENAME")
	use_suites "$work" "$release" "$release-updates" "$release-backports"
	DEBIAN_FRONTEND=noninteractive apt_of_suites apt-get -q -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 \
		install -y --no-install-recommends -t "$release-backports" qemu-system-x86 kmod xz-utils >&2
}

main() {
	complete && return
	work=$(mktemp -d)
	trap 'end; rm -rf "$work"' EXIT
	trap 'exit 130' INT TERM HUP
	say "installing QEMU"
	run "installing QEMU" 900 install
	complete || { say "QEMU $oldest or later is needed; install it by this system's own means"; exit 1; }
}

main
