#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Copies the manifests that the chart has in common with config/ into the chart:
# Helm reads no file outside of it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

files=charts/braid/files
for room in crd rbac admission; do
	rm -rf "${files:?}/$room"
	mkdir -p "$files/$room"
	cp config/"$room"/*.yaml "$files/$room/"
	rm -f "$files/$room/kustomization.yaml"
done
