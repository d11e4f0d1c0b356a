// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

func TestAKernelWithoutLinksForCongestionControlsIsNamed(t *testing.T) {
	for name, test := range map[string]struct{ structure, wanted string }{
		"a kernel without them":  {"bpf_link", "Linux 6.4 or later is needed"},
		"a kernel that has them": {"bpf_struct_ops_link", ""},
	} {
		t.Run(name, func(t *testing.T) {
			switch err := requireLinks(kernelWith(t, test.structure)); {
			case test.wanted == "" && err != nil:
				t.Errorf("it is refused: %v", err)
			case test.wanted != "" && (err == nil || !strings.Contains(err.Error(), test.wanted)):
				t.Errorf("the answer is %v, without %q", err, test.wanted)
			}
		})
	}
}

// kernelWith are the types of a kernel that has one structure.
func kernelWith(t *testing.T, name string) *btf.Spec {
	t.Helper()
	builder, err := btf.NewBuilder([]btf.Type{&btf.Struct{Name: name, Size: 4}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := builder.Marshal(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := btf.LoadSpecFromReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	return kernel
}
