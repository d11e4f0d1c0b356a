#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# libvirtd.sh DAEMON DIRECTORY runs a daemon of libvirt that has its sockets in a directory, and
# everything else that it writes in memory. To be run in a mount namespace of its own. Its
# machines run as root, as the lab's others.
set -euo pipefail

daemon=$1 directory=$2

for place in /run /var/lib /var/cache /var/log; do
	# The directory itself may be below one of these.
	[[ $directory == "$place"/* ]] || mount -t tmpfs libvirt "$place"
done
memory=/mnt
mount -t tmpfs libvirt "$memory"
mkdir -p /run/libvirt /var/lib/libvirt /var/cache/libvirt /var/log/libvirt "$memory"/etc/libvirt "$memory"/work "$memory"/drivers
mount --bind "$directory" /run/libvirt
# It wants this user to be there, also where its machines are another one's.
for file in passwd group; do
	cp "/etc/$file" "$memory/etc/$file"
	grep -q ^libvirt-qemu: "/etc/$file" || tail -n 1 <<-END >>"$memory/etc/$file"
		$([[ $file == passwd ]] && echo 'libvirt-qemu:x:64055:65534::/:/bin/false' || echo 'libvirt-qemu:x:64055:')
	END
done
cat >"$memory/etc/libvirt/qemu.conf" <<END
user = "root"
group = "root"
stdio_handler = "file"
security_driver = "none"
remember_owner = 0
namespaces = []
cgroup_controllers = []
END
printf 'auth_unix_rw = "none"\nlog_outputs = "3:stderr"\n' >"$memory/etc/libvirt/daemon.conf"
mount -t overlay -o "lowerdir=/etc,upperdir=$memory/etc,workdir=$memory/work" etc /etc
# No driver of networks or of devices is to look at the machine.
ln -s /usr/lib/*/libvirt/connection-driver/libvirt_driver_qemu.so "$memory/drivers/"
# As the first process of its namespace bash buries what libvirt leaves.
LIBVIRT_DRIVER_DIR=$memory/drivers "$daemon" --config /etc/libvirt/daemon.conf
