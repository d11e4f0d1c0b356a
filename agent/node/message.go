// SPDX-License-Identifier: Apache-2.0

package node

import "unicode/utf8"

// Shorten cuts a message to so many bytes and a sign that it was cut.
func Shorten(limit int, message string) string {
	if len(message) <= limit {
		return message
	}
	end := limit
	for !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + "…"
}
