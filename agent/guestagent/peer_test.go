// SPDX-License-Identifier: Apache-2.0

package guestagent

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// peer is a guest agent at a real socket, with a kernel's limits behind it.
type peer struct {
	mu    sync.Mutex
	is    limits
	calls []string // programs that ran
	kept  []byte   // the file that a node writes into it; nil where there is none
	// fails is a program that the guest does not have.
	fails string
	// slow is how long a client waits until it is served.
	slow time.Duration
	// stale is sent when a client connects; answer is in the place of what is answered to a
	// command, empty for that.
	stale  string
	answer func(command string) string
}

// serve has a peer listen below a directory.
func serve(t *testing.T, directory, path string, p *peer) *peer {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(directory, path)), 0o700))
	listener, err := net.Listen("unix", filepath.Join(directory, path))
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			p.talk(connection)
		}
	}()
	return p
}

func (p *peer) now() limits {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.is
}

func (p *peer) set(is limits) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.is = is
}

func (p *peer) keep(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = []byte(text)
}

func (p *peer) ran() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// talk answers a client until it goes.
func (p *peer) talk(connection net.Conn) {
	defer connection.Close()
	time.Sleep(p.slow)
	if _, err := connection.Write([]byte(p.stale)); err != nil {
		return
	}
	answers := p.begin()
	for lines := bufio.NewScanner(connection); lines.Scan(); {
		answer, err := answers([]byte(lines.Text()[max(0, strings.LastIndexByte(lines.Text(), delimiter)+1):]))
		if err != nil {
			return
		}
		if _, err := connection.Write([]byte(answer)); err != nil {
			return
		}
	}
}

// begin is a conversation: it answers orders.
func (p *peer) begin() func(line []byte) (string, error) {
	printed := map[int]outcome{}
	return func(line []byte) (answer string, err error) {
		var order struct {
			Execute   string
			Arguments struct {
				ID, PID int
				Path    string
				Arg     []string
				Input   []byte `json:"input-data"`
			}
		}
		if err := json.Unmarshal(line, &order); err != nil {
			return "", err
		}
		switch order.Execute {
		case "guest-sync-delimited":
			answer = fmt.Sprintf("\xff{\"return\": %d}\n", order.Arguments.ID)
		case "guest-exec":
			printed[len(printed)+1] = p.run(order.Arguments.Path, order.Arguments.Arg, order.Arguments.Input)
			answer = fmt.Sprintf("{\"return\": {\"pid\": %d}}\n", len(printed))
		case "guest-exec-status":
			is := printed[order.Arguments.PID]
			answer = fmt.Sprintf("{\"return\": {\"exited\": true, \"exitcode\": %d, \"out-data\": %q, \"err-data\": %q}}\n", *is.ExitCode,
				base64.StdEncoding.EncodeToString(is.Out), base64.StdEncoding.EncodeToString(is.Err))
		}
		if p.answer != nil {
			if other := p.answer(order.Execute); other != "" {
				answer = other
			}
		}
		return answer, nil
	}
}

// run is `ip mptcp limits`, and what reads and writes the file.
func (p *peer) run(program string, arguments []string, input []byte) outcome {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, strings.Join(append([]string{program}, arguments...), " "))
	code := int64(0)
	switch {
	case program == p.fails:
		code = 127
	case program == "tee":
		p.kept = input
	case program == "rm":
		p.kept = nil
	case program == "cat" && p.kept == nil:
		code = 1
	case program == "cat":
		return outcome{ExitCode: &code, Out: p.kept}
	case arguments[2] == "set":
		var failed [2]error
		p.is.AcceptedAddresses, failed[0] = strconv.Atoi(arguments[4])
		p.is.Subflows, failed[1] = strconv.Atoi(arguments[6])
		if errors.Join(failed[:]...) != nil {
			code = 1
		}
	default:
		return outcome{ExitCode: &code, Out: fmt.Appendf(nil, "add_addr_accepted %d subflows %d \n", p.is.AcceptedAddresses, p.is.Subflows)}
	}
	return outcome{ExitCode: &code}
}
