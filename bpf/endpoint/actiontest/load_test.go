// SPDX-License-Identifier: Apache-2.0

package actiontest_test

import "testing"

func TestTheVerifierTakesTheActors(t *testing.T) { newHarness(t) }
