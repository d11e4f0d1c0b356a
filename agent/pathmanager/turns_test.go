// SPDX-License-Identifier: Apache-2.0

package pathmanager

import "testing"

func TestANamespaceLooksForDriftInItsTurnAlone(t *testing.T) {
	for range cap(turns) {
		turns <- struct{}{}
	}
	defer func() {
		for range cap(turns) {
			<-turns
		}
	}()
	f := &follower{} // it has nothing to look with
	if wait := f.resyncInTurn(); wait != turnWait {
		t.Errorf("while others look it asks again after %s, not %s", wait, turnWait)
	}
}
