// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// API servers write this key every five minutes, and panic where it was there and is gone.
func TestWhatAPIServersAgreeOnOutlivesATest(t *testing.T) {
	var shared Shared
	t.Cleanup(func() { require.NoError(t, shared.Stop()) })
	server := shared.Use(t)
	for _, key := range []string{"compact_rev_key", "/registry/of-a-test"} {
		_, err := server.ask(t.Context(), "put", map[string]any{"key": []byte(key), "value": []byte("1")})
		require.NoError(t, err)
	}
	shared.Use(t)
	left, err := server.read(t.Context())
	require.NoError(t, err)
	require.NotContains(t, left.values, "/registry/of-a-test")
	kept, err := server.ask(t.Context(), "range", map[string]any{"key": []byte("compact_rev_key")})
	require.NoError(t, err)
	require.Len(t, kept.KVs, 1)
}
