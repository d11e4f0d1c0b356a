#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs long commands under a time limit, tells how long they have
# been running, and ends them with the script that started them. To be
# sourced, or called: progress.sh WHO WHAT COMMAND…

job= watcher=

# who names the script in what it says.
say() { echo "${who:?}: $*" >&2; }

# run WHAT SECONDS COMMAND… runs a command or function in a process group of its
# own, ends the group after so many seconds or when this script is gone, and
# says every ten seconds how long it has been.
run() {
	local what=$1 seconds=$2 code=0
	shift 2
	set -m
	"$@" &
	job=$!
	set +m
	# A watcher that outlives a killed script must hold no lock of it.
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

# lock FILE waits until no other run holds the file. It uses descriptor 9.
lock() {
	exec 9>"$1"
	flock --nonblock 9 && return
	say "another run is at it; waiting for it"
	flock 9
}

# need_go ends the script when there is no Go.
need_go() {
	command -v go >/dev/null && return
	say "go is not in PATH: install Go from https://go.dev/dl/"
	exit 1
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
	set -euo pipefail
	who=$1 what=$2
	shift 2
	trap end EXIT
	trap 'exit 130' INT TERM HUP
	run "$what" 3600 "$@"
fi
