// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"bytes"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// A program may describe several structures of one name, such as one of its own and
// one of the kernel's.
func TestOfSeveralStructuresOfANameTheOneThatFitsIsTaken(t *testing.T) {
	four, eight := &btf.Int{Name: "four", Size: 4}, &btf.Int{Name: "eight", Size: 8}
	named := func(size uint32, member btf.Type) *btf.Struct {
		return &btf.Struct{Name: "address", Size: size, Members: []btf.Member{{Name: "word", Type: member}}}
	}
	other, wanted := named(4, four), named(8, eight)
	tests := map[string]struct {
		types []btf.Type
		want  btf.Type
		fails bool
	}{
		"the only one, though it does not fit": {[]btf.Type{other}, other, false},
		"the second of two":                    {[]btf.Type{other, wanted}, wanted, false},
		"the first of two":                     {[]btf.Type{wanted, other}, wanted, false},
		"none of that name":                    {[]btf.Type{four}, nil, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			found, err := structure(specOf(t, test.types), wanted)
			if (err != nil) != test.fails {
				t.Fatalf("got %v", err)
			}
			if !test.fails && describe(found) != describe(test.want) {
				t.Errorf("found %v, want %v", found, test.want)
			}
		})
	}
}

func specOf(t *testing.T, types []btf.Type) *btf.Spec {
	t.Helper()
	builder, err := btf.NewBuilder(types, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := builder.Marshal(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := btf.LoadSpecFromReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}
