// SPDX-License-Identifier: Apache-2.0

// Command machine is what a container of the cluster with kubelets runs that holds a virtual
// machine: `run` joins the machine's tap with the pod's network as KubeVirt does and becomes
// QEMU's parent, `ready` says whether the machine is up, and `order` has it run the traffic
// generator.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"braid.dev/braid/hack/lab/binding"
	"braid.dev/braid/hack/lab/guestline"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

const (
	line  = "/run/line"  // the machine's serial line
	ready = "/run/ready" // is there once it was up
	// bootPatience bounds what takes seconds, or half a minute where QEMU emulates on a busy node.
	bootPatience = 4 * time.Minute
)

func main() {
	root := &cobra.Command{Use: "machine", Short: "Hold a virtual machine", SilenceUsage: true}
	root.AddCommand(runCommand(), readyCommand(), orderCommand())
	if err := root.Execute(); err != nil {
		os.Exit(1)
	}
}

func runCommand() *cobra.Command {
	var kind string
	var memory int
	command := &cobra.Command{
		Use: "run", Short: "Run the machine", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			place, err := binding.Bind(kind)
			if err != nil {
				return err
			}
			return emulate(place, memory)
		},
	}
	command.Flags().StringVar(&kind, "binding", binding.Masquerade, "masquerade or bridge, as of KubeVirt")
	command.Flags().IntVar(&memory, "memory", 128, "MiB that the machine has")
	return command
}

func readyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ready", Short: "Fail while the machine is not up", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := os.Stat(ready)
			return err
		},
	}
}

func orderCommand() *cobra.Command {
	return &cobra.Command{
		Use: "order -- ARGUMENT...", Short: "Run the traffic generator in the machine", Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, arguments []string) error {
			connection, err := net.Dial("unix", line)
			if err != nil {
				return fmt.Errorf("opening the line to the machine: %w", err)
			}
			defer connection.Close()
			if err := json.NewEncoder(connection).Encode(guestline.Order{Arguments: arguments, Now: traffic.Now()}); err != nil {
				return fmt.Errorf("asking the machine: %w", err)
			}
			answer, err := read(connection)
			if err == nil {
				fmt.Print(answer.Output)
			}
			return err
		},
	}
}

func read(connection net.Conn) (answer guestline.Answer, err error) {
	text, err := bufio.NewReader(connection).ReadBytes('\n')
	if err != nil {
		return answer, fmt.Errorf("waiting for the machine: %w", err)
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return answer, fmt.Errorf("reading what the machine says: %w: %q", err, text)
	}
	if answer.Error != "" {
		err = errors.New(answer.Error)
	}
	return answer, err
}

// emulate runs QEMU until it ends, which the death of this process brings about.
func emulate(place *binding.Place, memory int) error {
	parameters := []string{
		"console=ttyS0", "panic=-1", "mitigations=off", "quiet", "net.ifnames=0", guestline.Address + "=" + place.Address,
		guestline.Gateway + "=" + place.Gateway, guestline.Segment + "=" + strconv.Itoa(network.MachineSegment),
	}
	command := exec.Command("/usr/bin/qemu-system-x86_64",
		"-nodefaults", "-display", "none", "-no-reboot", "-machine", "q35", "-cpu", "max", "-smp", "1", "-m", strconv.Itoa(memory),
		"-accel", "tcg,thread=single,tb-size=64",
		"-kernel", "/boot/vmlinuz", "-initrd", "/boot/initrd", "-append", strings.Join(parameters, " "),
		"-netdev", "tap,id=nic,ifname="+binding.Tap+",script=no,downscript=no",
		"-device", fmt.Sprintf("virtio-net-pci,netdev=nic,romfile=,mac=%s,host_mtu=%d", place.MAC, place.MTU),
		"-serial", "stdio", "-serial", "unix:"+line+",server=on,wait=off",
	)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	command.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := command.Start(); err != nil {
		return fmt.Errorf("starting QEMU: %w", err)
	}
	go func() {
		if err := await(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	return command.Wait()
}

// await waits until the machine says that it is up.
func await() error {
	deadline := time.Now().Add(bootPatience)
	for {
		connection, err := net.Dial("unix", line)
		if err == nil {
			defer connection.Close()
			if _, err := read(connection); err != nil {
				return err
			}
			return os.WriteFile(ready, nil, 0o600)
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}
