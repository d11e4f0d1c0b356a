// SPDX-License-Identifier: Apache-2.0

package guestagent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// libvirt's remote procedure calls, of which five are enough to talk to a guest's agent. A library
// would bring some hundred, and takes what a server says of lengths for true: here the server
// can be a tenant's.

// Programs and their procedures (libvirt's src/remote/{remote,qemu}_protocol.x).
const (
	remoteProgram = 0x20008086
	qemuProgram   = 0x20008087
	version       = 1

	authList       = 66
	connectOpen    = 1
	lookupByName   = 23
	listAllDomains = 273
	agentCommand   = 3 // of qemuProgram
)

// Kinds and outcomes of messages (src/rpc/virnetprotocol.x).
const (
	kindCall    = 0
	kindReply   = 1
	kindMessage = 2 // an event, which nobody asked for

	statusOK    = 0
	statusError = 1
)

// Bounds of a message: what stands before its content, and all of it.
const (
	headerBytes = 28
	mostPacket  = mostLine + 4096
)

// libvirtAnswerTime is how many seconds libvirt waits for the guest's agent, so that it says itself
// what it waited for.
const libvirtAnswerTime = 5

// activeDomains has the list be of those that run.
const activeDomains = 1

// libvirt is a connection to one of its daemons.
type libvirt struct {
	to     io.Writer
	from   io.Reader
	serial uint32
}

func newLibvirt(connection io.ReadWriter) *libvirt {
	return &libvirt{to: connection, from: io.LimitReader(connection, mostBytes)}
}

// libvirtError is what libvirt says in the place of a result.
type libvirtError struct {
	code uint32
	text string
}

func (e *libvirtError) Error() string { return fmt.Sprintf("libvirt says "+quoted, e.text) }

// Codes of errors (include/libvirt/virterror.h).
const (
	codeInternal = 1
	codeNoDomain = 42
)

// errNotLibvirt is of answers that are not of its protocol.
var errNotLibvirt = errors.New("what answers at libvirt's socket does not speak its protocol")

// call has a daemon do something.
func (l *libvirt) call(program, procedure uint32, arguments *packer) (*unpacker, error) {
	l.serial++
	var message packer
	message.number(headerBytes+uint32(len(arguments.data)), program, version, procedure, kindCall, l.serial, statusOK)
	if _, err := l.to.Write(append(message.data, arguments.data...)); err != nil {
		return nil, fmt.Errorf("asking libvirt: %w", err)
	}
	for {
		kind, status, content, err := l.receive(program, procedure)
		switch {
		case err != nil:
			return nil, err
		case kind == kindMessage:
			continue
		case status == statusError:
			return nil, content.failure()
		}
		return content, nil
	}
}

// receive reads a message: an event, or the answer to the call that was made last.
func (l *libvirt) receive(program, procedure uint32) (kind, status uint32, content *unpacker, err error) {
	var length [4]byte
	if _, err := io.ReadFull(l.from, length[:]); err != nil {
		return 0, 0, nil, silent(err)
	}
	size := binary.BigEndian.Uint32(length[:])
	if size < headerBytes || size > mostPacket {
		return 0, 0, nil, errNotLibvirt
	}
	content = &unpacker{data: make([]byte, size-4)}
	if _, err := io.ReadFull(l.from, content.data); err != nil {
		return 0, 0, nil, silent(err)
	}
	of, is, at := content.number(), content.number(), content.number()
	kind, serial, status := content.number(), content.number(), content.number()
	if kind == kindMessage {
		return kind, status, content, nil
	}
	if of != program || is != version || at != procedure || kind != kindReply || serial != l.serial || status > statusError {
		return 0, 0, nil, errNotLibvirt
	}
	return kind, status, content, nil
}

// silent says what it means that nothing more comes.
func silent(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errors.New("libvirt does not answer")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errNotLibvirt
	}
	return fmt.Errorf("waiting for libvirt: %w", err)
}

// failure reads an error.
func (u *unpacker) failure() error {
	is := &libvirtError{code: u.number()}
	u.number() // the part of libvirt where it arose
	is.text, _ = u.optional()
	if u.failed {
		return errNotLibvirt
	}
	return is
}

// domain is a machine of a libvirt.
type domain struct {
	*libvirt
	name string
	uuid []byte
	id   uint32
}

// openDomain finds a machine that runs: the only one, where the name is empty.
func openDomain(connection io.ReadWriter, name string) (*domain, error) {
	l := newLibvirt(connection)
	if err := l.open(); err != nil {
		return nil, err
	}
	if name == "" {
		return l.onlyDomain()
	}
	var arguments packer
	arguments.text(name)
	content, err := l.call(remoteProgram, lookupByName, &arguments)
	if is := (*libvirtError)(nil); errors.As(err, &is) && is.code == codeNoDomain {
		return nil, fmt.Errorf("%w: libvirt has no domain "+quoted, errGone, name)
	}
	if err != nil {
		return nil, err
	}
	d := content.domain(l)
	switch {
	case !content.whole() || d.name != name:
		return nil, errNotLibvirt
	case int32(d.id) < 0:
		return nil, fmt.Errorf("%w: libvirt's domain "+quoted+" does not run", errGone, name)
	}
	return d, nil
}

// open begins a session: with the daemon of the machine, or of the user as whom it runs, as in
// KubeVirt's pods.
func (l *libvirt) open() error {
	if err := l.authenticate(); err != nil {
		return err
	}
	var content *unpacker
	var err error
	for _, uri := range []string{"qemu:///system", "qemu:///session"} {
		var arguments packer
		arguments.number(1) // the text is there
		arguments.text(uri)
		arguments.number(0)
		if content, err = l.call(remoteProgram, connectOpen, &arguments); !errors.As(err, new(*libvirtError)) {
			break
		}
	}
	if err == nil && !content.whole() {
		return errNotLibvirt
	}
	return err
}

// authenticate asks which proof is wanted: none, also of root where polkit decides, once it asks.
func (l *libvirt) authenticate() error {
	content, err := l.call(remoteProgram, authList, &packer{})
	if err != nil {
		return err
	}
	const none = 0
	count, kind := content.number(), content.number()
	switch {
	case content.failed || uint64(len(content.data)) != 4*(uint64(count)-1):
		return errNotLibvirt
	case kind != none:
		return errors.New("libvirt wants a password or another proof, which the agent does not have: its auth_unix_rw should be none, or polkit")
	}
	return nil
}

// onlyDomain is the machine of a libvirt that runs one, as in a pod of KubeVirt.
func (l *libvirt) onlyDomain() (*domain, error) {
	var arguments packer
	arguments.number(1, activeDomains)
	content, err := l.call(remoteProgram, listAllDomains, &arguments)
	if err != nil {
		return nil, err
	}
	switch count := content.number(); {
	case count == 0 && !content.failed:
		return nil, fmt.Errorf("%w: the pod's libvirt runs no machine yet, or no more", errGone)
	case count != 1:
		return nil, fmt.Errorf("%w: the pod's libvirt runs %d machines", errNotLibvirt, count)
	}
	d := content.domain(l)
	if content.number(); !content.whole() {
		return nil, errNotLibvirt
	}
	return d, nil
}

func (u *unpacker) domain(of *libvirt) *domain {
	return &domain{of, u.text(), u.bytes(16), u.number()}
}

// ask has libvirt ask the guest's agent.
func (d *domain) ask(command []byte) ([]byte, error) {
	var arguments packer
	arguments.text(d.name)
	arguments.data = append(arguments.data, d.uuid...)
	arguments.number(d.id)
	arguments.text(string(command))
	arguments.number(libvirtAnswerTime, 0)
	content, err := d.call(qemuProgram, agentCommand, &arguments)
	if is := (*libvirtError)(nil); errors.As(err, &is) && is.code == codeInternal {
		return nil, &refusal{err.Error()} // what the agent answers, in libvirt's words
	}
	if err != nil {
		return nil, err
	}
	answer, there := content.optional()
	if !there || !content.whole() {
		return nil, errNotLibvirt
	}
	return []byte(answer), nil
}
