#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes an image of the system's own packages of nginx, curl, ab and mptcpize in
# the cache, without installing any of them, and prints the archive's path.
set -euo pipefail

who=workload
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
name=braid.dev/workload:1
packages=(nginx curl apache2-utils mptcpize busybox)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/braid/workload
out=$cache/workload.tar
made_by=$out.by # the sum of the script that made it
work=

# shellcheck source=hack/progress.sh
source "$here/../progress.sh"

fetch() {
	mkdir -p "$work/debs/partial" "$work/lists"
	# With no package taken for installed, all that they depend on comes along.
	apt-get -q -o DPkg::Lock::Timeout=300 update >/dev/null
	apt-get -q -o Dir::State::status=/dev/null -o Dir::Cache::archives="$work/debs" \
		install --download-only --yes --no-install-recommends "${packages[@]}" >/dev/null
	for package in "$work"/debs/*.deb; do
		dpkg-deb --extract "$package" "$work/root"
	done
	rm -rf "$work"/root/usr/share/{doc,man,locale,info,perl,zoneinfo} "$work"/root/usr/lib/*/perl*
}

make_image() {
	fetch
	mkdir -p "$work"/root/{tmp,proc,sys,dev,run,var/log/nginx,var/lib/nginx,www}
	cat >"$work/root/etc/passwd" <<<"root:x:0:0:root:/root:/bin/sh"
	cat >"$work/root/etc/group" <<<"root:x:0:"
	cat >"$work/root/etc/nginx/nginx.conf" <<'CONF'
user root;
daemon off;
worker_processes 1;
error_log /dev/stderr;
pid /run/nginx.pid;
events { worker_connections 8192; }
http {
  access_log off;
  sendfile on;
  keepalive_requests 1000000;
  server {
    listen 80;
    root /www;
    location = /who { return 200 "$hostname\n"; }
    location = /from { return 200 "$remote_addr\n"; }
  }
}
CONF
	for size in 1k 10k 30k 100k 300k 1m 100m; do
		head -c "${size^^}" /dev/zero >"$work/root/www/$size"
	done
	(cd "$here/../image" && go run . --root "$work/root" --user 0:0 --name "$name" --output "$out.new")
	mv "$out.new" "$out"
	script_sum >"$made_by"
}

# made says whether the image is there, and made by this script.
made() {
	[[ -e $out && -e $made_by && $(<"$made_by") == $(script_sum) ]]
}

script_sum() {
	sha256sum <"$here/workload.sh"
}

cleanup() {
	end
	[[ -z $work ]] || rm -rf "$work"
}

main() {
	if ! made; then
		need_go
		mkdir -p "$cache"
		lock "$cache/.lock"
		trap cleanup EXIT
		trap 'exit 130' INT TERM HUP
		if ! made; then
			work=$(mktemp -d "$cache/.work.XXXXXX")
			say "making an image of ${packages[*]} from the system's packages, once"
			run "making the image" 900 make_image
		fi
	fi
	echo "$out"
}

main
