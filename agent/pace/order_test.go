// SPDX-License-Identifier: Apache-2.0

package pace_test

import "encoding/binary"

// native is the machine's own order of bytes, in which the maps' words are read.
var native = binary.NativeEndian

// bigEndian is a port as the network has it.
func bigEndian(port uint16) uint16 {
	return native.Uint16(binary.BigEndian.AppendUint16(nil, port))
}
