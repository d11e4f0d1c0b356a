// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// SetReceiveBuffer says how large the receive buffers of new sockets are, in bytes; with 0 the
// kernel chooses as it did before. Configure must have succeeded. It is for the socket of
// an MPTCP connection: since Linux 6.18 that one no longer follows its subflows', which have
// their size from package transport, and drops what they have let a peer send.
func (n *Namespace) SetReceiveBuffer(bytes int64) error {
	return n.choose(settingReceiveBuffers, bytes > 0, func(before string) (string, error) {
		most, err := n.mostReceiveBuffer()
		if err != nil {
			return "", err
		}
		size := strconv.FormatInt(memoryOf(min(bytes, most)), 10)
		return strings.Join([]string{strings.Fields(before)[0], size, size}, "\t"), nil
	})
}

// memoryOf is what the kernel takes for a buffer of so many bytes, as for SO_RCVBUF.
func memoryOf(bytes int64) int64 { return 2 * bytes }

// mostReceiveBuffer is what the node's kernel bounds SO_RCVBUF by. Only the machine's own
// network namespace shows it.
func (n *Namespace) mostReceiveBuffer() (int64, error) {
	data, err := os.ReadFile(filepath.Join(n.sysctls.root, "sys/net/core/rmem_max"))
	if errors.Is(err, os.ErrNotExist) {
		return maxReceiveBuffer, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading net.core.rmem_max: %w", err)
	}
	most, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading net.core.rmem_max: %w", err)
	}
	return most, nil
}

// maxReceiveBuffer is the most that a policy may give.
const maxReceiveBuffer = 64 << 20
