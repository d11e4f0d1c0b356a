// SPDX-License-Identifier: Apache-2.0

package guestagent

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var byDefault = limits{0, 2}

// ask reads the limits of the guest at a socket.
func ask(ctx context.Context, directory, path string) (is limits, err error) {
	err = New(Options{Sockets: directory}).with(ctx, place{Socket: path}, func(c *channel) (err error) {
		is, err = c.limits()
		return err
	})
	return is, err
}

func TestWhatAnEarlierClientLeftUnreadIsSkipped(t *testing.T) {
	for name, stale := range map[string]string{
		"nothing": "", "an answer": "{\"return\": {}}\n", "half of one": "{\"return\": {\"ex", "a synchronization of its": "\xff{\"return\": 7}\n",
		"an error": "\xff{\"error\": {\"class\": \"GenericError\", \"desc\": \"Invalid\"}}\n", "nonsense": "\xff\xff\x00\n\xff",
	} {
		t.Run(name, func(t *testing.T) {
			directory := t.TempDir()
			serve(t, directory, "vm/agent", &peer{is: byDefault, stale: stale})
			is, err := ask(t.Context(), directory, "vm/agent")
			require.NoError(t, err)
			require.Equal(t, byDefault, is)
		})
	}
}

// answers are those of guests to a command, and what is told of them.
var answers = map[string]struct {
	command, answer string
	refused         bool
	told            string
}{
	"forbids commands":                   {"guest-exec", `{"error": {"class": "CommandNotFound", "desc": "Command guest-exec has been disabled"}}`, true, "has been disabled"},
	"has no ip":                          {"guest-exec", `{"error": {"class": "GenericError", "desc": "Failed to execute child process “ip” (No such file or directory)"}}`, true, "No such file"},
	"fails":                              {"guest-exec-status", `{"return": {"exited": true, "exitcode": 255, "err-data": "` + base64.StdEncoding.EncodeToString([]byte("Object \"mptcp\" is unknown")) + `"}}`, true, "is unknown"},
	"ends by a signal":                   {"guest-exec-status", `{"return": {"exited": true, "signal": 9}}`, true, "fails in the guest"},
	"prints something else":              {"guest-exec-status", `{"return": {"exited": true, "exitcode": 0, "out-data": "` + base64.StdEncoding.EncodeToString([]byte("add_addr_accepted -1 subflows 2")) + `"}}`, true, "prints"},
	"gives no number":                    {"guest-exec", `{"return": {}}`, false, "not of its protocol"},
	"gives a number that is none":        {"guest-exec", `{"return": {"pid": "1; reboot"}}`, false, "not of its protocol"},
	"is not of the protocol":             {"guest-exec", `HTTP/1.1 200 OK`, false, "not of its protocol"},
	"both answers and refuses":           {"guest-exec", `{"return": {}, "error": {"desc": "x"}}`, false, "not of its protocol"},
	"prints what is not base64":          {"guest-exec-status", `{"return": {"exited": true, "exitcode": 0, "out-data": "%%%"}}`, false, "not of its protocol"},
	"never ends a line":                  {"guest-exec", strings.Repeat("x", 2*mostLine), false, "waiting for the guest agent"},
	"has much to say":                    {"guest-exec-status", strings.Repeat(`{"return": {"exited": false}}`+"\n", 2*mostBytes/30), false, "the guest agent: "},
	"puts a terminal's codes into words": {"guest-exec", `{"error": {"desc": "\u001b[2J` + strings.Repeat("y", 400) + `"}}`, true, `\x1b[2J`},
}

func TestAHostileGuestIsToldOfAndHarmsNobody(t *testing.T) {
	for name, is := range answers {
		t.Run("a guest that "+name, func(t *testing.T) {
			directory := t.TempDir()
			serve(t, directory, "agent", &peer{is: byDefault, answer: func(command string) string {
				if command == is.command {
					return is.answer + "\n"
				}
				return ""
			}})
			var c *channel
			p := New(Options{Sockets: directory})
			p.patience = 2 * time.Second
			err := p.with(t.Context(), place{Socket: "agent"}, func(to *channel) error {
				c, to.wait = to, func() {}
				_, err := to.limits()
				return err
			})
			require.ErrorContains(t, err, is.told)
			require.Equal(t, is.refused, errors.As(err, new(*refusal)))
			require.Less(t, len(err.Error()), mostMessage)
			require.NotNil(t, c)
		})
	}
}

func TestAGuestThatSaysNothingIsGivenUp(t *testing.T) {
	directory := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(directory, "agent"))
	require.NoError(t, err)
	defer listener.Close() // nobody accepts: something else is QEMU's client
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = ask(ctx, directory, "agent")
	require.ErrorIs(t, err, errHeld)
}

func TestAGuestThatTricklesIsGivenUp(t *testing.T) {
	directory := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(directory, "agent"))
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		connection, err := listener.Accept()
		for err == nil {
			time.Sleep(20 * time.Millisecond)
			_, err = connection.Write([]byte("x"))
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = ask(ctx, directory, "agent")
	require.ErrorIs(t, err, errHeld)
}

// Whoever can write into the directory, as QEMU can, leads the agent to no other socket.
func TestNoSocketOutsideOfTheDirectoryIsOpened(t *testing.T) {
	directory, elsewhere := t.TempDir(), t.TempDir()
	serve(t, elsewhere, "agent", &peer{is: byDefault})
	require.NoError(t, os.Symlink(filepath.Join(elsewhere, "agent"), filepath.Join(directory, "link")))
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(directory, "way")))
	require.NoError(t, os.Symlink("inside", filepath.Join(directory, "beside")))
	serve(t, directory, "inside", &peer{is: byDefault})
	require.NoError(t, os.WriteFile(filepath.Join(directory, "file"), nil, 0o600))
	for _, path := range []string{"link", "way/agent", "beside", "../" + filepath.Base(elsewhere) + "/agent", filepath.Join(elsewhere, "agent"), "file", "."} {
		_, err := ask(t.Context(), directory, path)
		require.Error(t, err, path)
		require.NotErrorIs(t, err, errGone, path)
	}
	_, err := ask(t.Context(), directory, "inside")
	require.NoError(t, err)
	_, err = ask(t.Context(), directory, "none")
	require.ErrorIs(t, err, errGone)
	_, err = ask(t.Context(), filepath.Join(directory, "removed"), "inside")
	require.ErrorIs(t, err, errGone, "with the last machine, the directory may be removed")
}

func TestLimitsAreReadAsTheyArePrinted(t *testing.T) {
	is, err := parseLimits("add_addr_accepted 3 subflows 7 \n")
	require.NoError(t, err)
	require.Equal(t, limits{3, 7}, is)
	for _, text := range []string{"", "add_addr_accepted 0", "subflows 2 add_addr_accepted 0", "add_addr_accepted 0 subflows 2 3", "add_addr_accepted 999 subflows 2", "add_addr_accepted x subflows 2"} {
		_, err := parseLimits(text)
		require.Error(t, err, text)
	}
}

// whole is a guest that has said all that it will.
type whole struct{ io.Reader }

func (whole) Write(data []byte) (int, error) { return len(data), nil }

func FuzzWhatAGuestSays(f *testing.F) {
	f.Add([]byte("{\"return\": {\"pid\": 1}}\n{\"return\": {\"exited\": true, \"exitcode\": 0, \"out-data\": \"YWRkX2FkZHJfYWNjZXB0ZWQgMCBzdWJmbG93cyAyCg==\"}}\n"))
	for _, is := range answers {
		f.Add([]byte(is.answer[:min(len(is.answer), 4096)] + "\n"))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		c := newChannel(newLine(whole{bytes.NewReader(said)}))
		c.wait = func() {}
		is, err := c.limits()
		if err != nil && len(fmt.Sprint(err)) > 4*mostMessage {
			t.Fatalf("what is told of it has %d bytes", len(err.Error()))
		}
		if is.AcceptedAddresses < 0 || is.AcceptedAddresses > 255 || is.Subflows < 0 || is.Subflows > 255 {
			t.Fatalf("limits %+v", is)
		}
		_ = newLine(whole{bytes.NewReader(said)}).synchronize()
	})
}
