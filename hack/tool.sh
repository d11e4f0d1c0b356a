# SPDX-License-Identifier: Apache-2.0
#
# Builds a tool from a Go module of its own into the cache, once for each version,
# and prints its path: build_tool NAME MODULE PACKAGE, with module set to the
# directory of its go.mod. To be sourced.

# shellcheck source=hack/progress.sh
source "$(dirname "${BASH_SOURCE[0]}")/progress.sh"

build_tool() {
	local name=$1 path=$2 package=$3 version cache out
	version=$(awk -v module="$path" '{ sub(/^require /, "") } $1 == module && $2 { print $2; exit }' "$module/go.mod")
	cache=${XDG_CACHE_HOME:-$HOME/.cache}/braid/$name
	out=$cache/$name-$version
	if [[ ! -x $out ]]; then
		need_go
		mkdir -p "$cache"
		lock "$cache/.lock"
		trap end EXIT
		trap 'exit 130' INT TERM HUP
		if [[ ! -x $out ]]; then
			say "building $name $version from Go modules, once, some minutes"
			run "building $name $version" 1800 compile_tool "$out.new" "$package"
			mv "$out.new" "$out"
		fi
	fi
	echo "$out"
}

compile_tool() {
	cd "$module"
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$1" "$2"
}
