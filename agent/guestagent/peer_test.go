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

	"github.com/stretchr/testify/require"
)

// peer is a guest agent at a real socket, with a kernel's limits behind it.
type peer struct {
	mu    sync.Mutex
	is    limits
	calls []string // programs that ran
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

func (p *peer) ran() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// talk answers a client until it goes.
func (p *peer) talk(connection net.Conn) {
	defer connection.Close()
	if _, err := connection.Write([]byte(p.stale)); err != nil {
		return
	}
	printed := map[int]outcome{}
	for lines := bufio.NewScanner(connection); lines.Scan(); {
		var order struct {
			Execute   string
			Arguments struct {
				ID, PID int
				Path    string
				Arg     []string
			}
		}
		if err := json.Unmarshal([]byte(lines.Text()[max(0, strings.LastIndexByte(lines.Text(), delimiter)+1):]), &order); err != nil {
			return
		}
		answer := ""
		switch order.Execute {
		case "guest-sync-delimited":
			answer = fmt.Sprintf("\xff{\"return\": %d}\n", order.Arguments.ID)
		case "guest-exec":
			printed[len(printed)+1] = p.run(order.Arguments.Path, order.Arguments.Arg)
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
		if _, err := connection.Write([]byte(answer)); err != nil {
			return
		}
	}
}

// run is `ip mptcp limits`.
func (p *peer) run(program string, arguments []string) outcome {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, strings.Join(append([]string{program}, arguments...), " "))
	code := int64(0)
	if len(arguments) == 7 && arguments[2] == "set" {
		var failed [2]error
		p.is.AcceptedAddresses, failed[0] = strconv.Atoi(arguments[4])
		p.is.Subflows, failed[1] = strconv.Atoi(arguments[6])
		if errors.Join(failed[:]...) != nil {
			code = 1
		}
		return outcome{ExitCode: &code}
	}
	return outcome{ExitCode: &code, Out: fmt.Appendf(nil, "add_addr_accepted %d subflows %d \n", p.is.AcceptedAddresses, p.is.Subflows)}
}
