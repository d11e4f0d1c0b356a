#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs libvirt's daemon for QEMU and virsh from the packages of Debian or Ubuntu, without the
# services that start it with the machine, and prints the daemon's path.
set -euo pipefail

who=lab
# shellcheck source=hack/progress.sh
source "$(dirname "${BASH_SOURCE[0]}")/../progress.sh"

# The daemon for QEMU alone is in newer releases.
daemon() { PATH=$PATH:/usr/sbin command -v virtqemud libvirtd | head -n 1; }

driver() { compgen -G '/usr/lib/*/libvirt/connection-driver/libvirt_driver_qemu.so' >/dev/null; }

complete() { command -v virsh >/dev/null && driver && [[ -n $(daemon) ]]; }

install() {
	export DEBIAN_FRONTEND=noninteractive
	apt-get -q -o DPkg::Lock::Timeout=300 update >&2 &&
		apt-get -q -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 install -y --no-install-recommends \
			libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients >&2
}

if ! complete; then
	trap end EXIT
	trap 'exit 130' INT TERM HUP
	say "installing libvirt"
	run "installing libvirt" 900 install
	complete || { say "libvirt's daemon for QEMU and virsh are needed; install them by this system's own means"; exit 1; }
fi
daemon
