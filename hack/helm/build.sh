#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds Helm from this module into the cache, once for each version, and prints
# its path (about two minutes on two cores).
set -euo pipefail

who=helm
module=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# shellcheck source=hack/tool.sh
source "$module/../tool.sh"

build_tool helm helm.sh/helm/v4 helm.sh/helm/v4/cmd/helm
