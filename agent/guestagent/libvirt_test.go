// SPDX-License-Identifier: Apache-2.0

package guestagent

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/testutil"
)

// daemon is a libvirt with machines, the first of which has a guest agent.
type daemon struct {
	*peer
	machines []string
	uri      string // the one it serves
	stopped  bool   // its machines do not run
	// answer is what it says to the call of a procedure in the place of what is right; nil for that.
	answer func(procedure, serial uint32) []byte
}

// serveLibvirt has a daemon listen below a directory.
func serveLibvirt(t *testing.T, directory, path string, d *daemon) *daemon {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(directory, path)), 0o700))
	short, err := os.MkdirTemp("", "s") // an address has 108 bytes
	require.NoError(t, err)
	listener, err := net.Listen("unix", filepath.Join(short, "s"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	require.NoError(t, os.Rename(filepath.Join(short, "s"), filepath.Join(directory, path)))
	require.NoError(t, os.Remove(short))
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go d.talk(connection)
		}
	}()
	return d
}

// packet is a message of libvirt's.
func packet(program, procedure, kind, serial, status uint32, content []byte) []byte {
	var p packer
	p.number(headerBytes+uint32(len(content)), program, version, procedure, kind, serial, status)
	return append(p.data, content...)
}

// failed is the content of an error.
func failed(code uint32, text string) []byte {
	var p packer
	p.number(code, 10, 1)
	p.text(text)
	p.number(2, 0, 0, 0, 0, 0, 0, 0)
	return p.data
}

func (d *daemon) talk(connection net.Conn) {
	defer connection.Close()
	orders := d.begin()
	for {
		var head [headerBytes]byte
		if _, err := io.ReadFull(connection, head[:]); err != nil {
			return
		}
		call := &unpacker{data: make([]byte, binary.BigEndian.Uint32(head[:])-headerBytes)}
		if _, err := io.ReadFull(connection, call.data); err != nil {
			return
		}
		program, procedure, serial := binary.BigEndian.Uint32(head[4:]), binary.BigEndian.Uint32(head[12:]), binary.BigEndian.Uint32(head[20:])
		answer := []byte(nil)
		if d.answer != nil {
			answer = d.answer(procedure, serial)
		}
		if answer == nil {
			status, content := d.carryOut(program, procedure, call, orders)
			answer = packet(program, procedure, kindReply, serial, status, content)
		}
		if _, err := connection.Write(answer); err != nil {
			return
		}
	}
}

// carryOut does what a call asks for.
func (d *daemon) carryOut(program, procedure uint32, call *unpacker, orders func([]byte) (string, error)) (status uint32, content []byte) {
	var p packer
	switch {
	case program == qemuProgram && procedure == agentCommand:
		call.text()
		call.bytes(20)
		answer, err := orders([]byte(call.text()))
		if err != nil {
			return statusError, failed(86, err.Error())
		}
		p.number(1)
		p.text(strings.TrimSpace(answer))
	case procedure == authList:
		p.number(1, 0)
	case procedure == connectOpen:
		if uri, _ := call.optional(); uri != d.uri {
			return statusError, failed(codeInternal, "unexpected QEMU URI path")
		}
	case procedure == lookupByName && !strings.Contains(strings.Join(d.machines, " "), call.text()):
		return statusError, failed(codeNoDomain, "Domain not found")
	case procedure == lookupByName:
		d.machine(&p, d.machines[0])
	default:
		p.number(uint32(len(d.machines)))
		for _, name := range d.machines {
			d.machine(&p, name)
		}
		p.number(uint32(len(d.machines)))
	}
	return statusOK, p.data
}

func (d *daemon) machine(p *packer, name string) {
	p.text(name)
	p.data = append(p.data, "0123456789abcdef"...)
	id := uint32(7)
	if d.stopped {
		id = 0xffffffff
	}
	p.number(id)
}

// inPod is the place of a pod's machine, with its UID.
func inPod(uid string) place { return place{Socket: filepath.Join(uid, libvirtOfPod), InPod: true} }

// askAt reads the limits of the guest at a place.
func askAt(ctx context.Context, p *Part, at place) (is limits, err error) {
	err = p.with(ctx, at, func(c *channel) (err error) {
		c.wait = func() {}
		is, err = c.limits()
		return err
	})
	return is, err
}

// withPods is a part that knows both directories.
func withPods(t *testing.T) *Part {
	t.Helper()
	p, _ := newPart(t)
	p.options.Pods = t.TempDir()
	return p
}

func TestAGuestIsReachedByItsLibvirt(t *testing.T) {
	for _, uri := range []string{"qemu:///system", "qemu:///session"} {
		t.Run(uri, func(t *testing.T) {
			p := withPods(t)
			serveLibvirt(t, p.options.Pods, inPod("uid").Socket, &daemon{peer: &peer{is: limits{1, 3}}, machines: []string{"shop_db"}, uri: uri})
			serveLibvirt(t, p.options.Sockets, "virtqemud-sock", &daemon{peer: &peer{is: limits{2, 4}}, machines: []string{"db", "web"}, uri: uri})
			is, err := askAt(t.Context(), p, inPod("uid"))
			require.NoError(t, err)
			require.Equal(t, limits{1, 3}, is)
			is, err = askAt(t.Context(), p, place{Socket: "virtqemud-sock", Domain: "db"})
			require.NoError(t, err)
			require.Equal(t, limits{2, 4}, is)
		})
	}
}

func TestTheLimitsOfAVMInAPodAreRaisedAndPutBack(t *testing.T) {
	p := withPods(t)
	pod := node.Endpoint{PlanEndpoint: &v1alpha1.PlanEndpoint{
		UID: "uid", Namespace: "shop", Name: "virt-launcher-db", VirtualMachine: &v1alpha1.PlanVirtualMachine{Held: true, GuestAgent: true},
	}}
	model := &node.Model{Endpoints: []node.Endpoint{pod}}
	p.Apply(t.Context(), model)
	p.step(t.Context())
	require.Equal(t, v1alpha1.GuestAgentUnreachable, statusOf(t, p, model, "uid").State, "KubeVirt has not made it yet")
	d := serveLibvirt(t, p.options.Pods, inPod("uid").Socket, &daemon{peer: &peer{is: byDefault}, machines: []string{"shop_db"}, uri: "qemu:///session"})
	p = again(p)
	p.Apply(t.Context(), model)
	p.step(t.Context())
	require.Equal(t, limits{8, 8}, d.now())
	require.Equal(t, v1alpha1.GuestAgentLimitsSet, statusOf(t, p, model, "uid").State)
	p = again(p)
	p.Apply(t.Context(), &node.Model{})
	p.step(t.Context())
	require.Equal(t, byDefault, d.now())
	require.Empty(t, recordsOf(t, p))

	p.options.Pods = ""
	p = again(p)
	p.Apply(t.Context(), model)
	p.step(t.Context())
	require.Contains(t, statusOf(t, p, model, types.UID("uid")).Message, "agent.podsDirectory")
}

func TestItIsToldWhyLibvirtReachesNoGuest(t *testing.T) {
	says := func(procedure, code uint32, text string) func(uint32, uint32) []byte {
		return func(of, serial uint32) []byte {
			program := uint32(remoteProgram)
			if of == agentCommand {
				program = qemuProgram
			}
			if of != procedure {
				return nil
			}
			return packet(program, of, kindReply, serial, statusError, failed(code, text))
		}
	}
	for name, is := range map[string]struct {
		daemon
		told          string
		gone, refused bool
	}{
		"runs none":           {daemon{}, "runs no machine yet", true, false},
		"has another one":     {daemon{machines: []string{"web"}}, "has no domain", true, false},
		"has it switched off": {daemon{machines: []string{"db"}, stopped: true}, "does not run", true, false},
		"runs two":            {daemon{machines: []string{"db", "web"}}, "runs 2 machines", false, false},
		"gets no answer":      {daemon{machines: []string{"db"}, answer: says(agentCommand, 86, "Guest agent is not responding: QEMU guest agent is not connected")}, "is not connected", false, false},
		"is refused":          {daemon{machines: []string{"db"}, answer: says(agentCommand, codeInternal, "unable to execute QEMU agent command 'guest-exec': Command guest-exec has been disabled")}, "has been disabled", false, true},
		"serves nobody":       {daemon{machines: []string{"db"}, answer: says(connectOpen, 38, "no connection driver")}, "no connection driver", false, false},
		"wants a password": {daemon{answer: func(of, serial uint32) []byte {
			return packet(remoteProgram, of, kindReply, serial, statusOK, []byte{0, 0, 0, 1, 0, 0, 0, 1})
		}}, "wants a password", false, false},
		"speaks a terminal's way": {daemon{answer: says(connectOpen, 1, "\x1b[2J"+strings.Repeat("y", 4000))}, `\x1b[2J`, false, false},
	} {
		t.Run("where it "+name, func(t *testing.T) {
			p := withPods(t)
			d := &is.daemon
			d.peer, d.uri = &peer{is: byDefault}, "qemu:///system"
			serveLibvirt(t, p.options.Sockets, "sock", d)
			at := place{Socket: "sock", Domain: "db"}
			if len(d.machines) != 1 {
				at = place{Socket: "sock", InPod: true}
				p.options.Pods = p.options.Sockets
			}
			_, err := askAt(t.Context(), p, at)
			require.ErrorContains(t, err, is.told)
			require.Less(t, len(err.Error()), mostMessage)
			require.Equal(t, is.gone, errors.Is(err, errGone))
			require.Equal(t, is.refused, errors.As(err, new(*refusal)))
		})
	}
}

// hostile are answers of a libvirt that is a tenant's own program.
var hostile = map[string]func(procedure, serial uint32) []byte{
	"no length":           func(uint32, uint32) []byte { return []byte{0, 0, 0, 0} },
	"a length too large":  func(uint32, uint32) []byte { return []byte{0xff, 0xff, 0xff, 0xff} },
	"a negative length":   func(uint32, uint32) []byte { return []byte{0x80, 0, 0, 0x1c} },
	"another language":    func(uint32, uint32) []byte { return []byte("HTTP/1.1 400 Bad Request\r\n\r\n") },
	"another call's":      func(of, serial uint32) []byte { return packet(remoteProgram, of, kindReply, serial+1, statusOK, nil) },
	"another procedure's": func(of, serial uint32) []byte { return packet(remoteProgram, of+1, kindReply, serial, statusOK, nil) },
	"a stream":            func(of, serial uint32) []byte { return packet(remoteProgram, of, 3, serial, 2, nil) },
	"nothing":             func(of, serial uint32) []byte { return packet(remoteProgram, of, kindReply, serial, statusOK, nil) },
	"too much": func(of, serial uint32) []byte {
		return packet(remoteProgram, of, kindReply, serial, statusOK, make([]byte, 4096))
	},
	"half an error": func(of, serial uint32) []byte {
		return packet(remoteProgram, of, kindReply, serial, statusError, []byte{0, 0, 0, 1})
	},
	"events without end": func(uint32, uint32) []byte {
		return bytes.Repeat(packet(remoteProgram, 1, kindMessage, 0, statusOK, make([]byte, 1024)), 2*mostBytes/1024)
	},
	"a million machines": func(of, serial uint32) []byte {
		if of != listAllDomains {
			return nil
		}
		return packet(remoteProgram, of, kindReply, serial, statusOK, []byte{0, 0x0f, 0x42, 0x40})
	},
	"a name without end": func(of, serial uint32) []byte {
		if of != listAllDomains {
			return nil
		}
		return packet(remoteProgram, of, kindReply, serial, statusOK, []byte{0, 0, 0, 1, 0xff, 0xff, 0xff, 0xfd})
	},
	"no answer of the agent": func(of, serial uint32) []byte {
		if of != agentCommand {
			return nil
		}
		return packet(qemuProgram, of, kindReply, serial, statusOK, []byte{0, 0, 0, 0})
	},
	"half a text": func(of, serial uint32) []byte {
		if of != agentCommand {
			return nil
		}
		return packet(qemuProgram, of, kindReply, serial, statusOK, []byte{0, 0, 0, 1, 0, 0, 0, 9, 'x'})
	},
}

func TestAHostileLibvirtIsToldOfAndHarmsNobody(t *testing.T) {
	for name, answer := range hostile {
		t.Run("that says "+name, func(t *testing.T) {
			p := withPods(t)
			serveLibvirt(t, p.options.Pods, inPod("uid").Socket, &daemon{peer: &peer{is: byDefault}, machines: []string{"db"}, uri: "qemu:///system", answer: answer})
			_, err := askAt(t.Context(), p, inPod("uid"))
			require.ErrorIs(t, err, errNotLibvirt)
			require.NotErrorIs(t, err, errGone, "what was set is not forgotten for it")
		})
	}
	t.Run("that says nothing", func(t *testing.T) {
		p := withPods(t)
		p.patience = 200 * time.Millisecond
		serveLibvirt(t, p.options.Pods, inPod("uid").Socket, &daemon{peer: &peer{is: byDefault}, machines: []string{"db"}, answer: func(uint32, uint32) []byte { return []byte{} }})
		_, err := askAt(t.Context(), p, inPod("uid"))
		require.ErrorContains(t, err, "libvirt does not answer")
	})
}

// A pod can make of its volume what it likes, and leads the agent nowhere else.
func TestAPodsVolumeLeadsTheAgentToNoOtherSocket(t *testing.T) {
	p := withPods(t)
	other := &daemon{peer: &peer{is: byDefault}, machines: []string{"db"}, uri: "qemu:///system"}
	serveLibvirt(t, p.options.Pods, inPod("other").Socket, other)
	serveLibvirt(t, p.options.Sockets, "sock", other)
	volume := func(uid string) string { return filepath.Dir(filepath.Join(p.options.Pods, inPod(uid).Socket)) }
	for _, uid := range []string{"socket", "relative", "file"} {
		require.NoError(t, os.MkdirAll(volume(uid), 0o700))
	}
	require.NoError(t, os.Symlink(filepath.Join(p.options.Sockets, "sock"), filepath.Join(volume("socket"), "virtqemud-sock")))
	require.NoError(t, os.Symlink(filepath.Join("../../../..", inPod("other").Socket), filepath.Join(volume("relative"), "virtqemud-sock")))
	require.NoError(t, os.WriteFile(filepath.Join(volume("file"), "virtqemud-sock"), nil, 0o600))
	require.NoError(t, os.MkdirAll(filepath.Dir(volume("volume")), 0o700))
	require.NoError(t, os.Symlink(volume("other"), volume("volume")))
	for _, uid := range []string{"socket", "relative", "file", "volume"} {
		_, err := askAt(t.Context(), p, inPod(uid))
		require.Error(t, err, uid)
		require.NotErrorIs(t, err, errGone, uid)
	}
	require.Empty(t, other.ran())
	_, err := askAt(t.Context(), p, inPod("other"))
	require.NoError(t, err)
	_, err = askAt(t.Context(), p, inPod("none"))
	require.ErrorIs(t, err, errGone)
}

// Real daemons, of the machine and of a user as in KubeVirt's pods, that run no machine.
func TestARealLibvirtThatRunsNoMachineIsUnderstood(t *testing.T) {
	found, err := exec.CommandContext(t.Context(), "../../hack/lab/libvirt.sh").Output()
	require.NoError(t, err)
	binary := strings.TrimSpace(string(found))
	repository, err := filepath.Abs("../..")
	require.NoError(t, err)
	apart := []string{"--mount", "--pid", "--fork", "--kill-child", "--mount-proc"}
	for name, is := range map[string]struct {
		arguments func(directory string) []string
		socket    string
	}{
		"of the machine": {func(directory string) []string {
			return []string{filepath.Join(repository, "hack/lab/libvirtd.sh"), binary, directory}
		}, filepath.Base(strings.Replace(binary, "libvirtd", "libvirt", 1)) + "-sock"},
		"of a user": {func(directory string) []string {
			return []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "HOME=" + directory, "XDG_RUNTIME_DIR=" + directory, binary}
		}, filepath.Join("libvirt", filepath.Base(strings.Replace(binary, "libvirtd", "libvirt", 1))+"-sock")},
	} {
		t.Run(name, func(t *testing.T) {
			p := withPods(t)
			directory := p.options.Sockets
			require.NoError(t, errors.Join(os.Chown(directory, 65534, 65534), os.Chmod(filepath.Dir(directory), 0o755)))
			log, err := os.Create(filepath.Join(t.TempDir(), "log"))
			require.NoError(t, err)
			defer log.Close()
			command := exec.Command("unshare", append(apart, is.arguments(directory)...)...)
			command.Stderr, command.SysProcAttr = log, &syscall.SysProcAttr{Setpgid: true}
			require.NoError(t, command.Start())
			defer func() {
				require.NoError(t, syscall.Kill(-command.Process.Pid, syscall.SIGKILL)) // the daemon too, and with it all that it began
				_ = command.Wait()
			}()
			at := place{Socket: is.socket, Domain: "db"}
			testutil.Retry(t, 20*time.Second, func() error {
				if _, err := askAt(t.Context(), p, at); !errors.Is(err, errGone) || !strings.Contains(err.Error(), "no domain") {
					said, _ := os.ReadFile(log.Name())
					return fmt.Errorf("%w; its log: %s", err, said)
				}
				return nil
			})
			p.options.Pods = directory
			_, err = askAt(t.Context(), p, place{Socket: is.socket, InPod: true})
			require.ErrorContains(t, err, "runs no machine yet")
		})
	}
}

// exchange is what a well-behaved libvirt says from the beginning on.
func exchange() (said []byte) {
	d := &daemon{peer: &peer{is: byDefault}, machines: []string{"db"}, uri: "qemu:///system"}
	orders := d.begin()
	var open, exec, status packer
	open.number(1)
	open.text("qemu:///system")
	for of, command := range map[*packer]string{
		&exec: `{"execute": "guest-exec", "arguments": {"path": "ip", "arg": ["mptcp", "limits", "show"]}}`, &status: `{"execute": "guest-exec-status", "arguments": {"pid": 1}}`,
	} {
		of.text("db")
		of.data = append(of.data, make([]byte, 20)...)
		of.text(command)
	}
	for i, call := range []struct {
		program, procedure uint32
		arguments          *packer
	}{
		{remoteProgram, authList, &packer{}}, {remoteProgram, connectOpen, &open}, {remoteProgram, listAllDomains, &packer{}},
		{qemuProgram, agentCommand, &exec}, {qemuProgram, agentCommand, &status},
	} {
		outcome, content := d.carryOut(call.program, call.procedure, &unpacker{data: call.arguments.data}, orders)
		said = append(said, packet(call.program, call.procedure, kindReply, uint32(i+1), outcome, content)...)
	}
	return said
}

func FuzzWhatALibvirtSays(f *testing.F) {
	f.Add(exchange(), false)
	for _, answer := range hostile {
		said := answer(authList, 1)
		f.Add(said[:min(len(said), 4096)], true)
	}
	f.Fuzz(func(t *testing.T, said []byte, named bool) {
		name := ""
		if named {
			name = "db"
		}
		d, err := openDomain(whole{bytes.NewReader(said)}, name)
		if err != nil {
			if len(err.Error()) > 4*mostMessage {
				t.Fatalf("what is told of it has %d bytes", len(err.Error()))
			}
			return
		}
		c := newChannel(d)
		c.wait = func() {}
		if is, err := c.limits(); err == nil && (is.AcceptedAddresses < 0 || is.AcceptedAddresses > 255 || is.Subflows < 0 || is.Subflows > 255) {
			t.Fatalf("limits %+v", is)
		}
	})
}

func TestTheSeedOfTheFuzzTestIsAWholeExchange(t *testing.T) {
	d, err := openDomain(whole{bytes.NewReader(exchange())}, "")
	require.NoError(t, err)
	c := newChannel(d)
	is, err := c.limits()
	require.NoError(t, err)
	require.Equal(t, byDefault, is)
}
