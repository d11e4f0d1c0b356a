// SPDX-License-Identifier: Apache-2.0

package wholefile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAFileIsReplacedForItsOwnerAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "file.json")
	for _, content := range []string{"a longer one", "another"} {
		require.NoError(t, Replace(path, []byte(content)))
		found, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, content, string(found))
	}
	for name, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700 | os.ModeDir} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Equal(t, want, info.Mode(), name)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, left, 1, "beside the file")
}

// A device that is full takes the first bytes and no more.
func TestAFileThatCannotBeWrittenLeavesTheOldOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, Replace(path, []byte("old")))
	require.NoError(t, os.Symlink("/dev/full", path+suffix))
	require.Error(t, Replace(path, []byte("new")))
	found, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "old", string(found))
	require.NoError(t, Remove(path))
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Empty(t, left, "after the removal")
}

func TestRemovingWhatIsNotThereIsNoFailure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, Replace(path, nil))
	require.NoError(t, Remove(path))
	require.NoFileExists(t, path)
	require.NoError(t, Remove(path))
}
