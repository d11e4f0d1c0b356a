// SPDX-License-Identifier: Apache-2.0

// Command guest is the first process of a lab's virtual machine. It gives the machine its
// address and, as its tenant would, the limits of MPTCP; then it runs the traffic generator as
// the host asks for it, by a serial line.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"braid.dev/braid/hack/kernels/boot"
	"braid.dev/braid/hack/lab/guestline"
	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/internal/mptcpnl"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
	}
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Fprintln(os.Stderr, "guest: switching off:", err)
	}
}

func run() error {
	err := errors.Join(boot.LoadModules("/modules"), boot.MountAll([]boot.Mount{
		{Source: "proc", Target: "/proc", Kind: "proc"},
		{Source: "sys", Target: "/sys", Kind: "sysfs"},
		{Source: "dev", Target: "/dev", Kind: "devtmpfs"},
	}))
	if err != nil {
		return err
	}
	if err := errors.Join(configureNetwork(), configureMPTCP()); err != nil {
		return err
	}
	line, err := os.OpenFile("/dev/ttyS1", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return fmt.Errorf("opening the line to the host: %w", err)
	}
	defer line.Close()
	if err := boot.Raw(line); err != nil {
		return fmt.Errorf("setting up the line to the host: %w", err)
	}
	return obey(line)
}

func configureNetwork() error {
	segment, err := strconv.Atoi(boot.Parameter(guestline.Segment))
	if err != nil {
		return fmt.Errorf("reading how large packets may be: %w", err)
	}
	return boot.ConfigureNetwork(boot.Parameter(guestline.Address), boot.Parameter(guestline.Gateway), segment)
}

// configureMPTCP leaves the limits to the agent of a machine that has one.
func configureMPTCP() error {
	if _, err := os.Stat(guestline.Agent); errors.Is(err, os.ErrNotExist) {
		return limitMPTCP()
	}
	ports, err := filepath.Glob("/dev/vport*p1")
	if err != nil || len(ports) != 1 {
		return fmt.Errorf("the guest agent has %d channels", len(ports))
	}
	agent := exec.Command(guestline.Agent, "--method=virtio-serial", "--path="+ports[0], "--statedir=/", "--pidfile=/agent.pid")
	agent.Env = append(os.Environ(), "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
	agent.Stdout, agent.Stderr = os.Stdout, os.Stderr
	if err := agent.Start(); err != nil {
		return fmt.Errorf("starting the guest agent: %w", err)
	}
	return nil
}

// limitMPTCP equals `ip mptcp limits set subflows 8 add_addr_accepted 8`.
func limitMPTCP() error {
	client, err := mptcpnl.Dial(0)
	if err != nil {
		return err
	}
	defer client.Close()
	return client.SetLimits(mptcpnl.Limits{Subflows: 8, AcceptedAddresses: 8})
}

// obey says that the machine is up, carries out the order of each line, and answers it with
// one.
func obey(line *os.File) error {
	orders := bufio.NewScanner(line)
	answers := json.NewEncoder(line)
	if err := answers.Encode(guestline.Answer{}); err != nil {
		return fmt.Errorf("telling the host: %w", err)
	}
	for orders.Scan() {
		var order guestline.Order
		if err := json.Unmarshal(orders.Bytes(), &order); err != nil {
			return fmt.Errorf("reading an order of the host: %w", err)
		}
		if err := answers.Encode(carryOut(order)); err != nil {
			return fmt.Errorf("answering the host: %w", err)
		}
	}
	return orders.Err()
}

func carryOut(order guestline.Order) (answer guestline.Answer) {
	command := exec.Command(guestline.Traffic, order.Arguments...)
	command.Env = append(os.Environ(), fmt.Sprintf("%s=%d", traffic.ClockVariable, order.Now-traffic.Now()))
	run := command.Output
	if order.Serves {
		run = func() ([]byte, error) { return serve(command) }
	}
	out, err := run()
	answer.Output = string(out)
	if err != nil {
		answer.Error = err.Error()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			answer.Error += ": " + string(exit.Stderr)
		}
	}
	return answer
}

// serve starts a server, and waits until it says that it listens.
func serve(command *exec.Cmd) ([]byte, error) {
	said, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	return bufio.NewReader(said).ReadBytes('\n')
}
