// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// domainXML is what libvirt is told of a machine.
type domainXML struct {
	XMLName xml.Name `xml:"domain"`
	Type    string   `xml:"type,attr"`
	Schema  string   `xml:"xmlns:qemu,attr"`
	Name    string   `xml:"name"`
	Memory  struct {
		Unit string `xml:"unit,attr"`
		Size string `xml:",chardata"`
	} `xml:"memory"`
	VCPU int `xml:"vcpu"`
	OS   struct {
		Type struct {
			Architecture string `xml:"arch,attr"`
			Machine      string `xml:"machine,attr"`
			Kind         string `xml:",chardata"`
		} `xml:"type"`
		Kernel  string `xml:"kernel"`
		Initrd  string `xml:"initrd"`
		Cmdline string `xml:"cmdline"`
	} `xml:"os"`
	// Features has ACPI: what libvirt says to QEMU without, newer ones do not know.
	Features struct {
		ACPI struct{} `xml:"acpi"`
	} `xml:"features"`
	Devices struct {
		Inner string `xml:",innerxml"`
	} `xml:"devices"`
	Arguments []argumentXML `xml:"qemu:commandline>qemu:arg"`
}

type argumentXML struct {
	Value string `xml:"value,attr"`
}

// machineDevices are what libvirt itself gives a machine: the channel of its guest agent.
const machineDevices = `<emulator>/usr/bin/qemu-system-x86_64</emulator><memballoon model="none"/><controller type="usb" model="none"/>` +
	`<channel type="unix"><target type="virtio" name="org.qemu.guest_agent.0"/></channel>`

// inXML divides a hypervisor's arguments into those that libvirt's XML has words for, and others.
func inXML(name string, arguments []string) *domainXML {
	d := &domainXML{Type: "qemu", Schema: "http://libvirt.org/schemas/domain/qemu/1.0", Name: name, VCPU: 1}
	d.Memory.Unit, d.Devices.Inner = "MiB", machineDevices
	d.OS.Type.Architecture, d.OS.Type.Machine, d.OS.Type.Kind = "x86_64", "q35", "hvm"
	words := map[string]*string{
		"-m": &d.Memory.Size, "-kernel": &d.OS.Kernel, "-initrd": &d.OS.Initrd, "-append": &d.OS.Cmdline,
		"-accel": new(string), "-display": new(string), "-machine": new(string), "-smp": new(string),
	}
	for at := 0; at < len(arguments); at++ {
		word, known := words[arguments[at]]
		switch {
		case known:
			at++
			*word = arguments[at]
		case arguments[at] != "-nodefaults":
			d.Arguments = append(d.Arguments, argumentXML{arguments[at]})
		}
	}
	return d
}

// startByLibvirt starts a libvirt in the place of a machine, and has it run the machine. Both
// end with the process that is returned.
func (l *Lab) startByLibvirt(ctx context.Context, m *Machine) (*Process, error) {
	daemon, err := runBuildScript(ctx, "lab/libvirt.sh")
	if err != nil {
		return nil, fmt.Errorf("getting libvirt: %w", err)
	}
	socket := filepath.Join(l.GuestAgents(), m.AgentSocket())
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return nil, fmt.Errorf("making a directory for libvirt's socket: %w", err)
	}
	text, err := xml.Marshal(inXML(m.spec.Name, l.placed(m, m.Pod)))
	if err != nil {
		return nil, fmt.Errorf("describing machine %s: %w", m.spec.Name, err)
	}
	description := l.machinePath(m.Pod, "xml")
	if err := os.WriteFile(description, text, 0o600); err != nil {
		return nil, fmt.Errorf("describing machine %s: %w", m.spec.Name, err)
	}
	arguments := libvirtCommand(l.repository, strings.TrimSpace(daemon), filepath.Dir(socket))
	process, err := l.start("machine-"+m.PodName, m.Command(context.Background(), arguments[0], arguments[1:]...))
	if err != nil {
		return nil, err
	}
	if connection, err := dialUnix(ctx, socket); err == nil {
		_ = connection.Close()
	}
	command := m.Command(ctx, "virsh", "--connect", "qemu+unix:///system?socket="+socket, "create", description)
	if out, err := command.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("having libvirt run machine %s: %w: %s", m.spec.Name, err, out), process.Stop(os.Kill))
	}
	return process, nil
}

// libvirtCommand runs a daemon of libvirt with its socket and what it keeps in a directory. What it
// starts ends with it.
func libvirtCommand(repository, daemon, directory string) []string {
	return []string{
		"unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
		filepath.Join(repository, "hack/lab/libvirtd.sh"), daemon, directory,
	}
}
