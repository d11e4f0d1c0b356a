#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# flaky.sh REPORT names the tests that were run again because they had failed, so
# that nobody overlooks one that passed then.
set -euo pipefail

[[ -s ${1:?usage: flaky.sh REPORT} ]] || exit 0
echo "=== failed at first, and were run again alone:"
sed 's/^/    /' "$1"
