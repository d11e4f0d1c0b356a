#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes what a release page offers in _out/release or $OUT: build.sh [--url URL]
# [--images DIRECTORY] [OS/ARCH...]. Archives of the plugin for all platforms or for those
# named, with licences and bills of materials; the manifest by which krew finds them at URL;
# the chart's package; of the images that build.sh of hack/image left in DIRECTORY the
# archives, digests, bills and provenance; and the sums of all of these.
#
# The same commit makes the same bytes: SOURCE_DATE_EPOCH, or else the commit's own time, is
# that of all files.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

version=$(awk '$1 == "appVersion:" { print $2 }' charts/braid/Chart.yaml)
url=https://braid.dev/releases/v$version images=
platforms=()
while (($#)); do
	case $1 in
	--url) url=${2:?} && shift ;;
	--images) images=${2:?} && shift ;;
	[a-z]*/*) platforms+=("$1") ;;
	*) echo "usage: build.sh [--url URL] [--images DIRECTORY] [OS/ARCH...]" >&2 && exit 2 ;;
	esac
	shift
done
((${#platforms[@]})) || platforms=(linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64)

out=${OUT:-$PWD/_out/release}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
export SOURCE_DATE_EPOCH

# build PLATFORM FILE
build() {
	echo "release: building kubectl-braid for $1" >&2
	CGO_ENABLED=0 GOOS=${1%/*} GOARCH=${1#*/} go build -trimpath -buildvcs=false \
		-ldflags "-s -w -buildid= -X main.version=$version" -o "$2" ./cmd/kubectl-braid
}

# offered lists what a release page has, but for the sums.
offered() { (cd "$out" && ls | grep -xE 'braid-.*|braid\.yaml|kubectl-braid_.*|digests\.yaml' || true); }

mkdir -p "$out"
(cd "$out" && offered | xargs -r rm -f --) # of a run before
programs=()
for platform in "${platforms[@]}"; do
	program=$work/${platform/\//-}/kubectl-braid
	build "$platform" "$program"
	programs+=("$platform=$program")
done
go -C hack/release run . --version "$version" --url "$url" --source "$PWD" --output "$out" "${programs[@]}"
helm=$(hack/helm/build.sh)
"$helm" package charts/braid --destination "$out" >/dev/null
if [[ -n $images ]]; then
	cp "$images"/braid-*.{oci.tar,cdx.json,provenance.json} "$images/digests.yaml" "$out"
fi
cd "$out"
offered | xargs sha256sum -- >SHA256SUMS
offered | xargs ls -l --time-style=+ -- SHA256SUMS | awk '{ printf "%10d  %s\n", $5, $NF }'
