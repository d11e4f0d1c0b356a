#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Compiles one packet program for little-endian processors, which is all that there
# are images for, and writes Go's view of it: hack/bpf2go.sh IDENTIFIER SOURCE [FLAGS
# of bpf2go]. For go:generate lines, from the directory of the source.
set -euo pipefail
root=$(realpath --relative-to=. "$(dirname "${BASH_SOURCE[0]}")/..")

# The headers by a relative path: it becomes part of the object.
exec go tool -modfile="$root/hack/tools/go.mod" bpf2go -target bpfel -cc clang-19 -strip llvm-strip-19 "${@:3}" "$1" "$2" \
	-- -O2 -g -mcpu=v3 -fno-strict-aliasing -Wall -Wextra -Werror -I"$root/bpf/include"
