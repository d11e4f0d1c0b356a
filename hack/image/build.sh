#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the images of the controller and the agent, with a bill of what is in each,
# into _out/images or $OUT: build.sh [VERSION [ARCHITECTURE...]]. Several architectures
# also come as one archive with all of them, with its provenance, and digests.yaml has
# the digests for Helm. SOURCE is another checkout to build from, LDFLAGS goes to the
# linker too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

version=${1:-0.1.0}
architectures=("${@:2}")
((${#architectures[@]})) || architectures=("$(go env GOARCH)")
registry=braid.dev
out=${OUT:-$PWD/_out/images}
source=${SOURCE:-$PWD}
mkdir -p "$out"

commit=$(git -C "$source" rev-parse HEAD 2>/dev/null || echo unknown)
[[ -z $(git -C "$source" status --porcelain 2>/dev/null) ]] || commit+=-modified
digests=

image() { (cd hack/image && go run . "$@"); }

# build PROGRAM ARCHITECTURE FILE
build() {
	CGO_ENABLED=0 GOOS=linux GOARCH=$2 go -C "$source" build -trimpath -buildvcs=false \
		-ldflags "-s -w -buildid= -X main.version=$version ${LDFLAGS:-}" -o "$3" "./cmd/$1"
}

for component in controller agent; do
	name=$registry/braid-$component:$version
	user=65532:65532 programs=(braid-$component)
	[[ $component == controller ]] || user=0:0 programs=(braid-agent braid-trace braid-proxy)
	contents=()
	for architecture in "${architectures[@]}"; do
		archive=$out/braid-$component-$architecture files=
		for program in "${programs[@]}"; do
			[[ -d $source/cmd/$program ]] || continue # a version before it
			build "$program" "$architecture" "$out/$architecture/$program"
			files+=${files:+,}$out/$architecture/$program
		done
		image --programs "$files" --arch "$architecture" --user "$user" --name "$name" \
			--output "$archive.tar" --sbom "$archive.cdx.json"
		echo "$archive.tar: $name; what is in it: $archive.cdx.json"
		contents+=("$architecture=$files")
	done
	if ((${#contents[@]} > 1)); then
		digest=$(image --user "$user" --name "$name" --output "$out/braid-$component.oci.tar" \
			--provenance "$out/braid-$component.provenance.json" --commit "$commit" "${contents[@]}")
		digests+="    $component: $digest"$'\n'
		echo "$out/braid-$component.oci.tar: $name for ${architectures[*]}"
	fi
done
if [[ -n $digests ]]; then
	printf 'image:\n  digests:\n%s' "$digests" >"$out/digests.yaml"
	echo "$out/digests.yaml: their digests, for helm install --values"
fi
