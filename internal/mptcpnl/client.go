// SPDX-License-Identifier: Apache-2.0

// Package mptcpnl speaks with the kernel's MPTCP stack: the generic netlink
// family mptcp_pm, by which endpoints, limits and subflows are managed and
// events are told, and socket diagnostics, by which existing connections and
// their subflows are found. A client works in one network namespace.
package mptcpnl

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
)

const (
	familyName    = "mptcp_pm"
	familyVersion = 1
	eventGroup    = "mptcp_pm_events"
)

// Commands of the family, as linux/mptcp_pm.h numbers them.
const (
	commandAddAddress = iota + 1
	commandDeleteAddress
	commandGetAddress
	commandFlushAddresses
	commandSetLimits
	commandGetLimits
	commandSetFlags
	commandAnnounce
	commandRemove
	commandSubflowCreate
	commandSubflowDestroy
)

// Attributes of commands, as linux/mptcp_pm.h numbers them.
const (
	attributeAddress = iota + 1
	attributeReceivedAddresses
	attributeSubflows
	attributeToken
	attributeLocalID
	attributeRemoteAddress
)

// ErrNoMPTCP says that the kernel has no MPTCP path manager.
var ErrNoMPTCP = errors.New("the kernel has no MPTCP path manager (CONFIG_MPTCP)")

// Client sends commands to the path manager of one network namespace. It is safe
// for concurrent use.
type Client struct {
	conn   *genetlink.Conn
	family genetlink.Family
}

// Dial opens a client in the network namespace with this open file descriptor;
// 0 means the caller's own. The namespace lives at least as long as the client
// is open. Entering another namespace needs CAP_SYS_ADMIN, and most commands
// need CAP_NET_ADMIN.
func Dial(namespace int) (*Client, error) {
	conn, family, err := dialFamily(namespace)
	if err != nil {
		return nil, err
	}
	return &Client{conn: conn, family: family}, nil
}

func dialFamily(namespace int) (*genetlink.Conn, genetlink.Family, error) {
	conn, err := genetlink.Dial(&netlink.Config{NetNS: namespace})
	if err != nil {
		return nil, genetlink.Family{}, fmt.Errorf("opening generic netlink: %w", err)
	}
	// Older kernels lack it; they then say EINVAL without the reason.
	_ = conn.SetOption(netlink.ExtendedAcknowledge, true)
	family, err := conn.GetFamily(familyName)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = ErrNoMPTCP
		}
		return nil, family, errors.Join(fmt.Errorf("finding netlink family %s: %w", familyName, err), conn.Close())
	}
	return conn, family, nil
}

// Close closes the client.
func (c *Client) Close() error { return c.conn.Close() }

// execute sends one command with the attributes that fill adds.
func (c *Client) execute(command uint8, flags netlink.HeaderFlags, fill func(*netlink.AttributeEncoder)) ([]genetlink.Message, error) {
	encoder := netlink.NewAttributeEncoder()
	if fill != nil {
		fill(encoder)
	}
	data, err := encoder.Encode()
	if err != nil {
		return nil, fmt.Errorf("encoding attributes: %w", err)
	}
	message := genetlink.Message{Header: genetlink.Header{Command: command, Version: familyVersion}, Data: data}
	return c.conn.Execute(message, c.family.ID, netlink.Request|flags)
}

func (c *Client) do(command uint8, fill func(*netlink.AttributeEncoder)) error {
	_, err := c.execute(command, netlink.Acknowledge, fill)
	return err
}

// AddEndpoint adds an endpoint. With ID 0 the kernel chooses one. It fails with
// EEXIST where the namespace has such an endpoint, with ERANGE where it has
// MaxEndpoints, and with EADDRINUSE where somebody listens on the port.
func (c *Client) AddEndpoint(endpoint Endpoint) error {
	if err := c.do(commandAddAddress, endpoint.attribute(attributeAddress)); err != nil {
		return fmt.Errorf("adding endpoint %s: %w", endpoint, err)
	}
	return nil
}

// DeleteEndpoint removes the endpoint with this ID, which is not 0.
func (c *Client) DeleteEndpoint(id uint8) error {
	if err := c.do(commandDeleteAddress, Endpoint{ID: id}.attribute(attributeAddress)); err != nil {
		return fmt.Errorf("deleting endpoint with id %d: %w", id, err)
	}
	return nil
}

// FlushEndpoints removes all endpoints of the namespace.
func (c *Client) FlushEndpoints() error {
	if err := c.do(commandFlushAddresses, nil); err != nil {
		return fmt.Errorf("flushing endpoints: %w", err)
	}
	return nil
}

// Endpoints lists the endpoints of the namespace, those included that the kernel
// made by itself (FlagImplicit).
func (c *Client) Endpoints() ([]Endpoint, error) {
	messages, err := c.execute(commandGetAddress, netlink.Dump, nil)
	if err != nil {
		return nil, fmt.Errorf("listing endpoints: %w", err)
	}
	var endpoints []Endpoint
	for _, message := range messages {
		if endpoint, ok := findEndpoint(message.Data); ok {
			endpoints = append(endpoints, endpoint)
		}
	}
	return endpoints, nil
}

// SetFlags changes FlagBackup and FlagFullmesh of the endpoint that has this ID
// or, without an ID, this address and port.
func (c *Client) SetFlags(endpoint Endpoint) error {
	if err := c.do(commandSetFlags, endpoint.attribute(attributeAddress)); err != nil {
		return fmt.Errorf("setting flags of endpoint %s: %w", endpoint, err)
	}
	return nil
}

// Limits of each connection of a namespace.
type Limits struct {
	// Subflows beyond the first one.
	Subflows uint32
	// AcceptedAddresses is how many announced addresses of the peer are used.
	AcceptedAddresses uint32
}

// Limits reads the limits of the namespace.
func (c *Client) Limits() (Limits, error) {
	messages, err := c.execute(commandGetLimits, 0, nil)
	if err != nil {
		return Limits{}, fmt.Errorf("reading limits: %w", err)
	}
	var limits Limits
	for _, message := range messages {
		decoder, err := netlink.NewAttributeDecoder(message.Data)
		if err != nil {
			return Limits{}, fmt.Errorf("reading limits: %w", err)
		}
		for decoder.Next() {
			switch decoder.Type() {
			case attributeSubflows:
				limits.Subflows = decoder.Uint32()
			case attributeReceivedAddresses:
				limits.AcceptedAddresses = decoder.Uint32()
			}
		}
		if err := decoder.Err(); err != nil {
			return Limits{}, fmt.Errorf("reading limits: %w", err)
		}
	}
	return limits, nil
}

// SetLimits sets the limits of the namespace, each MaxEndpoints at most. They
// hold for existing connections too.
func (c *Client) SetLimits(limits Limits) error {
	err := c.do(commandSetLimits, func(encoder *netlink.AttributeEncoder) {
		encoder.Uint32(attributeSubflows, limits.Subflows)
		encoder.Uint32(attributeReceivedAddresses, limits.AcceptedAddresses)
	})
	if err != nil {
		return fmt.Errorf("setting limits to %+v: %w", limits, err)
	}
	return nil
}

// Announce tells the peer of a connection of an address; ID must not be 0 and
// Flags must have FlagSignal. Nothing listens on the port but what somebody else
// opened. Like all commands with a token it needs the user-space path manager.
func (c *Client) Announce(token uint32, endpoint Endpoint) error {
	if err := c.connection(commandAnnounce, token, endpoint.attribute(attributeAddress)); err != nil {
		return fmt.Errorf("announcing %s: %w", endpoint, err)
	}
	return nil
}

// Remove tells the peer of a connection that an announced address is gone.
func (c *Client) Remove(token uint32, localID uint8) error {
	err := c.connection(commandRemove, token, func(encoder *netlink.AttributeEncoder) {
		encoder.Uint8(attributeLocalID, localID)
	})
	if err != nil {
		return fmt.Errorf("removing address with id %d: %w", localID, err)
	}
	return nil
}

// CreateSubflow begins to open one more subflow. Only the address, ID and
// interface of local count; the kernel chooses the port. An address may be that
// of an existing subflow, with the same ID. The subflow exists when an event
// says so.
func (c *Client) CreateSubflow(token uint32, local Endpoint, remote netip.AddrPort) error {
	return c.CreateSubflowTo(token, local, fromAddrPort(remote))
}

// CreateSubflowTo is CreateSubflow to an address that the peer announced with an
// ID: the subflow ends when the peer takes the announcement back.
func (c *Client) CreateSubflowTo(token uint32, local, remote Endpoint) error {
	local.Flags, local.Port = 0, 0
	err := c.connection(commandSubflowCreate, token, local.attribute(attributeAddress), remote.attribute(attributeRemoteAddress))
	if err != nil {
		return fmt.Errorf("creating subflow from %s to %s: %w", local.Address, netip.AddrPortFrom(remote.Address, remote.Port), err)
	}
	return nil
}

// DestroySubflow closes one subflow.
func (c *Client) DestroySubflow(token uint32, local, remote netip.AddrPort) error {
	err := c.connection(commandSubflowDestroy, token, fromAddrPort(local).attribute(attributeAddress), fromAddrPort(remote).attribute(attributeRemoteAddress))
	if err != nil {
		return fmt.Errorf("destroying subflow from %s to %s: %w", local, remote, err)
	}
	return nil
}

// SetBackup asks the peer to use a subflow only when no other works, or no
// longer so (MP_PRIO).
func (c *Client) SetBackup(token uint32, local, remote netip.AddrPort, backup bool) error {
	endpoint := fromAddrPort(local)
	if backup {
		endpoint.Flags = FlagBackup
	}
	err := c.connection(commandSetFlags, token, endpoint.attribute(attributeAddress), fromAddrPort(remote).attribute(attributeRemoteAddress))
	if err != nil {
		return fmt.Errorf("setting backup of subflow from %s to %s: %w", local, remote, err)
	}
	return nil
}

// connection sends a command that concerns one connection.
func (c *Client) connection(command uint8, token uint32, fill ...func(*netlink.AttributeEncoder)) error {
	err := c.do(command, func(encoder *netlink.AttributeEncoder) {
		encoder.Uint32(attributeToken, token)
		for _, f := range fill {
			f(encoder)
		}
	})
	if err != nil {
		return fmt.Errorf("connection %08x: %w", token, err)
	}
	return nil
}
