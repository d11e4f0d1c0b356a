// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"braid.dev/braid/internal/lab/network"
)

// The program that uses a lab starts itself again in these roles.
const (
	roleVariable  = "BRAID_LAB_ROLE"
	inputVariable = "BRAID_LAB_INPUT"

	roleJanitor = "janitor"
	roleForward = "forward"
)

// What is in a node's network namespace ends with the node, and a process is where its first
// thread is. A forwarder begins connections to kubelets on others.
func init() {
	if os.Getenv(roleVariable) == roleForward {
		runtime.LockOSThread()
	}
}

// RunRole must come first in the main function of every program (in TestMain of
// every test) that uses a lab. It returns at once, unless the program was started
// by a lab to be its janitor or its forwarder.
func RunRole() {
	var err error
	switch os.Getenv(roleVariable) {
	case "":
		return
	case roleJanitor:
		err = runJanitor(os.Getenv(inputVariable))
	case roleForward:
		err = runForwarder(os.Getenv(inputVariable))
	default:
		err = errors.New("unknown role")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", os.Getenv(roleVariable)+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// roleCommand starts this program anew, also if its file was removed.
func roleCommand(role, input string) (command *exec.Cmd, environment []string) {
	command = exec.Command("/proc/self/exe")
	command.Args[0] = "braid-lab-" + role
	return command, []string{roleVariable + "=" + role, inputVariable + "=" + input}
}

// janitor is a child that removes the lab when this program ends without having
// said that all is well.
type janitor struct {
	word    io.WriteCloser
	command *exec.Cmd
}

const allIsWell = "keep"

// startJanitor hands the child the lock too: nobody else uses the lab's name
// before it has removed the lab.
func startJanitor(name string, lock *os.File) (*janitor, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making the janitor's pipe: %w", err)
	}
	defer reader.Close()
	command, environment := roleCommand(roleJanitor, name)
	command.Env = append(os.Environ(), environment...)
	command.ExtraFiles = []*os.File{reader, lock}
	command.Stderr = os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting the janitor: %w", err), writer.Close())
	}
	return &janitor{word: writer, command: command}, nil
}

// dismiss sends the janitor home.
func (j *janitor) dismiss() error {
	_, err := io.WriteString(j.word, allIsWell)
	if err := errors.Join(err, j.word.Close(), j.command.Wait()); err != nil {
		return fmt.Errorf("dismissing the janitor: %w", err)
	}
	return nil
}

// runJanitor waits for the word, or for the end of the pipe's other end.
func runJanitor(name string) error {
	// Whoever reads the error output may be gone with the program.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	const pipe = 3 // the first of ExtraFiles
	word, err := io.ReadAll(os.NewFile(pipe, "pipe"))
	if err != nil {
		return fmt.Errorf("waiting for the program: %w", err)
	}
	if string(word) == allIsWell {
		return nil
	}
	fmt.Fprintf(os.Stderr, "lab %s: its program is gone; removing the lab\n", name)
	return teardown(name)
}

// forwarding is what the forwarder does: it listens on addresses inside each
// namespace and passes every connection on to one outside.
type forwarding struct {
	Inside     []string
	Outside    string
	Namespaces []string
	// Tunnel is a Unix socket for connections the other way; empty for none.
	Tunnel string
	// Nodes are the namespaces of nodes by their addresses.
	Nodes map[string]string
}

func (f forwarding) encode() (string, error) {
	text, err := json.Marshal(f)
	return string(text), err
}

func runForwarder(input string) error {
	var wanted forwarding
	if err := json.Unmarshal([]byte(input), &wanted); err != nil {
		return fmt.Errorf("reading what to forward: %w", err)
	}
	failed := make(chan error)
	if wanted.Tunnel != "" {
		go func() { failed <- tunnel(wanted) }()
	}
	for _, name := range wanted.Namespaces {
		namespace, err := network.Open(name)
		if err != nil {
			return err
		}
		for _, address := range wanted.Inside {
			listener, err := namespace.Listen(context.Background(), "tcp", address)
			if err != nil {
				return fmt.Errorf("listening on %s in %s: %w", address, name, err)
			}
			go func() { failed <- forwardAll(listener, wanted.Outside) }()
		}
	}
	return <-failed
}

// forwardAll goes on where one connection cannot be had, for want of descriptors say: without
// it no node reaches the API server.
func forwardAll(listener net.Listener, address string) error {
	for {
		inside, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("accepting connections: %w", err)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "failed to accept a connection on %s: %v\n", listener.Addr(), err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		go forward(inside, address)
	}
}

// forward copies both ways. A server that is down shows as a closed connection.
func forward(inside net.Conn, address string) {
	defer inside.Close()
	outside, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer outside.Close()
	join(inside, inside, outside)
}

// join copies both ways until one of them ends. What was read of a beforehand
// comes from the reader.
func join(read io.Reader, a, b net.Conn) {
	done := make(chan struct{}, 2)
	for _, pair := range []struct {
		to   io.Writer
		from io.Reader
	}{{a, b}, {b, read}} {
		go func() {
			_, _ = io.Copy(pair.to, pair.from)
			done <- struct{}{}
		}()
	}
	<-done
}
