#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the images of the controller and the agent into _out/images, for one
# architecture: build.sh [VERSION [ARCH]].
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

version=${1:-0.1.0}
architecture=${2:-$(go env GOARCH)}
registry=braid.dev
out=$PWD/_out/images
mkdir -p "$out"

for component in controller agent; do
	user=65532:65532
	[[ $component == controller ]] || user=0:0
	CGO_ENABLED=0 GOOS=linux GOARCH=$architecture go build -trimpath -buildvcs=false \
		-ldflags "-s -w -buildid= -X main.version=$version" -o "$out/$architecture/braid-$component" "./cmd/braid-$component"
	(cd hack/image && go run . --program "$out/$architecture/braid-$component" --arch "$architecture" --user "$user" \
		--name "$registry/braid-$component:$version" --output "$out/braid-$component-$architecture.tar")
	echo "_out/images/braid-$component-$architecture.tar: $registry/braid-$component:$version"
done
