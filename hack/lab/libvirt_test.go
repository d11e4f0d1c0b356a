// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/xml"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLibvirtIsToldOfAMachineWhatAHypervisorIs(t *testing.T) {
	text, err := xml.Marshal(inXML("vm", []string{
		"-accel", "tcg", "-nodefaults", "-display", "none", "-machine", "q35", "-cpu", "max", "-smp", "1", "-m", "192",
		"-kernel", "/k/vmlinuz", "-initrd", "/i", "-append", "quiet a=<b>", "-netdev", "tap,id=nic", "-serial", "file:/c",
	}))
	require.NoError(t, err)
	require.Equal(t, `<domain type="qemu" xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0"><name>vm</name><memory unit="MiB">192</memory><vcpu>1</vcpu>`+
		`<os><type arch="x86_64" machine="q35">hvm</type><kernel>/k/vmlinuz</kernel><initrd>/i</initrd><cmdline>quiet a=&lt;b&gt;</cmdline></os>`+
		`<features><acpi></acpi></features><devices>`+machineDevices+`</devices><qemu:commandline>`+
		`<qemu:arg value="-cpu"></qemu:arg><qemu:arg value="max"></qemu:arg><qemu:arg value="-netdev"></qemu:arg><qemu:arg value="tap,id=nic"></qemu:arg>`+
		`<qemu:arg value="-serial"></qemu:arg><qemu:arg value="file:/c"></qemu:arg></qemu:commandline></domain>`, string(text))
}
