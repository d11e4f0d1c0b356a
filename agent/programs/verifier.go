// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
)

// reasonLength is the room for a verifier's reason, in bytes.
const reasonLength = 512

// Refusal says why a program is not let in. Its text is for people, and short
// enough for a status.
type Refusal struct{ reason string }

func (r *Refusal) Error() string { return r.reason }

func refuse(parts ...string) error {
	return &Refusal{truncate(strings.Join(parts, ""))}
}

func truncate(text string) string {
	if len(text) <= reasonLength {
		return text
	}
	return strings.ToValidUTF8(text[:reasonLength-len("…")], "") + "…"
}

// forbiddenWrite is what the verifier says where a program would write to a map that is
// read-only for programs. Only those of other policies are.
const forbiddenWrite = "write into map forbidden"

// explain turns what the verifier says into the lines that help.
func explain(err error) error {
	var verifier *ebpf.VerifierError
	if !errors.As(err, &verifier) {
		return fmt.Errorf("loading the program: %w", err)
	}
	reason := verifierReason(verifier.Log, verifier.Cause)
	if strings.Contains(reason, forbiddenWrite) {
		return refuse("it may only read the maps of other policies, and the verifier found: ", reason)
	}
	return refuse("the verifier refuses it: ", reason)
}

// statementLines is how many of a log's last lines are its statement.
const statementLines = 2

// verifierReason picks from a log its last statement, and of what was looked at
// the source line and the instruction.
func verifierReason(log []string, cause error) string {
	var statement []string
	instruction, source := "", ""
	for i := len(log) - 1; i >= 0 && source == ""; i-- {
		line := strings.TrimSpace(log[i])
		switch {
		case line == "" || isBookkeeping(line):
		case strings.HasPrefix(line, ";"):
			source = strings.TrimSpace(strings.TrimLeft(line, "; "))
		case isInstruction(line):
			if instruction == "" {
				instruction = line
			}
		case len(statement) < statementLines && instruction == "":
			statement = append([]string{line}, statement...)
		}
	}
	if len(statement) == 0 {
		statement = []string{cause.Error()}
	}
	return strings.Join(statement, "; ") + inParentheses(instruction, source)
}

func inParentheses(instruction, source string) string {
	switch {
	case instruction == "" && source == "":
		return ""
	case source == "":
		return " (at " + instruction + ")"
	case instruction == "":
		return " (at \"" + source + "\")"
	}
	return " (at \"" + source + "\": " + instruction + ")"
}

// isBookkeeping tells what the verifier says of its own work.
func isBookkeeping(line string) bool {
	for _, prefix := range []string{
		"processed ", "verification time", "stack depth", "max_states", "peak_states", "mark_read",
		"from ", "last_idx", "first_idx", "regs=", "mark_precise", "parent ", "func#", "Func#", "Validating ", "propagating ",
	} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return strings.HasPrefix(line, "R") && strings.Contains(line, "=") && !strings.Contains(line, " invalid ")
}

// isInstruction tells lines such as "12: (79) r1 = *(u64 *)(r1 +0) ; R1=...".
func isInstruction(line string) bool {
	number, rest, found := strings.Cut(line, ":")
	if !found || number == "" || strings.Trim(number, "0123456789") != "" {
		return false
	}
	return strings.HasPrefix(strings.TrimSpace(rest), "(") || strings.HasPrefix(strings.TrimSpace(rest), "R")
}
