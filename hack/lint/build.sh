#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds golangci-lint from this module into the cache, once for each version,
# and prints its path (about three minutes on two cores).
set -euo pipefail

who=lint
module=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# shellcheck source=hack/tool.sh
source "$module/../tool.sh"

build_tool golangci-lint github.com/golangci/golangci-lint/v2 github.com/golangci/golangci-lint/v2/cmd/golangci-lint
