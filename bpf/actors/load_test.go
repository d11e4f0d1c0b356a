// SPDX-License-Identifier: Apache-2.0

package actors_test

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"

	"braid.dev/braid/bpf/actors"
)

func TestTheVerifierTakesThem(t *testing.T) {
	var objects actors.HarnessObjects
	err := actors.LoadHarnessObjects(&objects, &ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogSizeStart: 64 << 20}})
	var verifier *ebpf.VerifierError
	if errors.As(err, &verifier) {
		n := len(verifier.Log)
		if n > 60 { verifier.Log = verifier.Log[n-60:] }
		t.Fatalf("%+v", verifier)
	}
	if err != nil {
		t.Fatal(err)
	}
	objects.Close()
}
