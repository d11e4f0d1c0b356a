// SPDX-License-Identifier: Apache-2.0

package logonce_test

import (
	"errors"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/logonce"
)

func TestAnErrorIsLoggedWhenItIsAnother(t *testing.T) {
	var logged []string
	log := funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})
	full, gone := errors.New("no space left"), errors.New("no such device")
	var failed logonce.Error
	for _, err := range []error{nil, full, full, gone, gone, nil, gone} {
		failed.Log(log, err, "failed to write")
	}
	require.Len(t, logged, 3)
	for i, err := range []error{full, gone, gone} {
		require.Contains(t, logged[i], err.Error())
		require.Contains(t, logged[i], "failed to write")
	}
}
