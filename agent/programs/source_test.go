// SPDX-License-Identifier: Apache-2.0

package programs_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/agent/programs"
	"braid.dev/braid/bpf/program/programtest"
)

// cluster has one ConfigMap, "programs" in namespace "braid-system".
type cluster struct {
	client.Reader
	content map[string][]byte
}

func (c cluster) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if key != (client.ObjectKey{Namespace: "braid-system", Name: "programs"}) {
		return errors.New("not found")
	}
	into.(*corev1.ConfigMap).BinaryData = c.content
	return nil
}

func TestBlocksAreReadFromConfigMaps(t *testing.T) {
	reader := cluster{content: map[string][]byte{"stamp.o": programtest.Compile(t, "examples/stamp.bpf.c")}}
	configMaps := programs.ConfigMapsOf(reader, "braid-system")
	content, err := configMaps.Content(t.Context(), "programs", "stamp.o")
	require.NoError(t, err)
	if len(content) != len(reader.content["stamp.o"]) {
		t.Errorf("the program has %d bytes", len(content))
	}
	for reason, names := range map[string][2]string{
		"getting ConfigMap braid-system/other: not found":                  {"other", "stamp.o"},
		"ConfigMap braid-system/programs has no key other.o in binaryData": {"programs", "other.o"},
	} {
		if _, err := configMaps.Content(t.Context(), names[0], names[1]); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("the error is %v, wanted %q", err, reason)
		}
	}
}
