// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/network"
)

// The test starts itself again, as the processes of pods.
const (
	roleVariable = "BRAID_SOAK_ROLE"
	roleListen   = "listen"
	roleHold     = "hold"
)

// job is what such a process does. It says a number when it is ready, and ends when its
// input does, or when it is killed.
type job struct {
	// Port to listen on; nobody accepts, so that the connections take no descriptors.
	Port uint16
	// To is where to open connections to, Count is how many, PerSecond how fast.
	To               string
	Count, PerSecond int
	// Talk has each connection send and receive bytes all the time.
	Talk bool
}

// process is one that runs in a pod.
type process struct {
	command *exec.Cmd
	input   io.Closer
	output  *bufio.Reader
}

// start starts a process in a pod. It is killed at the latest when the test ends.
func start(t *testing.T, pod *network.Pod, role string, what job) *process {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(what)
	if err != nil {
		t.Fatal(err)
	}
	command := pod.Command(context.Background(), program, string(text))
	// The signals of Go's scheduler would interrupt connect.
	command.Env = append(os.Environ(), roleVariable+"="+role, "BRAID_LAB="+labName, "GODEBUG=asyncpreemptoff=1")
	command.Stderr = os.Stderr
	input, inputErr := command.StdinPipe()
	output, outputErr := command.StdoutPipe()
	if err := errors.Join(inputErr, outputErr, command.Start()); err != nil {
		t.Fatal(err)
	}
	p := &process{command: command, input: input, output: bufio.NewReader(output)}
	t.Cleanup(p.kill)
	return p
}

// ready waits for the process's number.
func (p *process) ready(t *testing.T) int {
	t.Helper()
	line, err := p.output.ReadString('\n')
	if err != nil {
		t.Fatalf("a process of a pod says nothing: %v", err)
	}
	number, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	return number
}

// end lets processes finish, all at the same time.
func end(t *testing.T, processes ...*process) {
	t.Helper()
	var failed error
	for _, p := range processes {
		failed = errors.Join(failed, p.input.Close())
	}
	for _, p := range processes {
		failed = errors.Join(failed, p.command.Wait())
	}
	if failed != nil {
		t.Errorf("processes of pods: %v", failed)
	}
}

// kill ends it at once. It may have ended.
func (p *process) kill() {
	_ = p.command.Process.Kill()
	_ = p.command.Wait()
}

func runRole(role string) error {
	var what job
	if err := json.Unmarshal([]byte(os.Args[1]), &what); err != nil {
		return fmt.Errorf("reading what to do: %w", err)
	}
	if role == roleListen {
		return what.listen()
	}
	return what.hold()
}

const (
	protocolMPTCP = 262
	backlog       = 1 << 17
	// dialers open connections at the same time: one whose SYN is lost waits a second.
	dialers = 16
	// A reset takes one packet, and the beginning of a connection three.
	resetFaster = 3
)

func (j job) listen() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protocolMPTCP)
	if err == nil {
		err = errors.Join(unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.Bind(socket, &unix.SockaddrInet4{Port: int(j.Port)}), unix.Listen(socket, backlog))
	}
	if err != nil {
		return fmt.Errorf("listening on %d: %w", j.Port, err)
	}
	fmt.Println(1)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// hold opens connections, holds them, and resets them one after the other: where all end
// at once, the wire loses most of what says so.
func (j job) hold() error {
	to, err := netip.ParseAddrPort(j.To)
	if err != nil {
		return err
	}
	sockets := make([]int, j.Count)
	var failed atomic.Int64
	begin := time.Now()
	var dialing sync.WaitGroup
	for first := range dialers {
		dialing.Go(func() {
			for i := first; i < len(sockets); i += dialers {
				pace(begin, i, j.PerSecond)
				socket, err := connect(to)
				if err != nil {
					failed.Add(1)
					fmt.Fprintf(os.Stderr, "connection %d to %v: %v\n", i, to, err)
					continue
				}
				sockets[i] = socket
				if j.Talk {
					go talk(socket)
				}
			}
		})
	}
	dialing.Wait()
	fmt.Println(j.Count - int(failed.Load()))
	_, err = io.Copy(io.Discard, os.Stdin)
	for i, begin := 0, time.Now(); i < len(sockets); i++ {
		pace(begin, i, resetFaster*j.PerSecond)
		if sockets[i] > 0 {
			reset(sockets[i])
		}
	}
	return err
}

// pace waits until it is the turn of the one with a number.
func pace(begin time.Time, number, perSecond int) {
	time.Sleep(time.Until(begin.Add(time.Duration(number) * time.Second / time.Duration(perSecond))))
}

func connect(to netip.AddrPort) (int, error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protocolMPTCP)
	if err != nil {
		return 0, err
	}
	patience := unix.Timeval{Sec: 10}
	err = errors.Join(unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience), unix.Connect(socket, testlab.Sockaddr(to)))
	if err != nil {
		_ = unix.Close(socket)
		return 0, err
	}
	return socket, nil
}

// reset ends a connection by one packet, and leaves no orphan.
func reset(socket int) {
	var unspecified unix.RawSockaddr // AF_UNSPEC disconnects
	_, _, _ = unix.Syscall(unix.SYS_CONNECT, uintptr(socket), uintptr(unsafe.Pointer(&unspecified)), unix.SizeofSockaddrInet4)
	_ = unix.Close(socket)
}

// talk sends enough at first to get further subflows, and then a little now and then,
// and takes back what comes, until the connection ends.
func talk(socket int) {
	buffer := make([]byte, 4096)
	for sent := 0; ; sent++ {
		piece := buffer
		if sent > 16 {
			piece = buffer[:256]
			time.Sleep(300 * time.Millisecond)
		}
		if _, err := unix.Write(socket, piece); err != nil {
			return
		}
		if n, err := unix.Read(socket, buffer); err != nil || n == 0 {
			return
		}
	}
}
