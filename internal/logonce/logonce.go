// SPDX-License-Identifier: Apache-2.0

// Package logonce logs an error that comes with each attempt once.
package logonce

import "github.com/go-logr/logr"

// Error is the last one of something that is tried again and again. It is not safe for concurrent
// use.
type Error struct{ last string }

// Log logs what became of an attempt: an error that the one before did not have. nil says that the
// attempt succeeded.
func (e *Error) Log(log logr.Logger, err error, message string) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if err != nil && text != e.last {
		log.Error(err, message)
	}
	e.last = text
}
