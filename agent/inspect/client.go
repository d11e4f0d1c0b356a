// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/agentapi"
)

// ErrNoAgent says that no agent serves at the socket.
var ErrNoAgent = errors.New("no agent runs here")

// Client asks a running agent.
type Client struct{ http http.Client }

// NewClient asks the agent that serves at this socket. Nothing is opened yet.
func NewClient(socket string) *Client {
	return &Client{http: http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Subflows lists the subflows. It fails with ErrNoAgent where none serves.
func (c *Client) Subflows(ctx context.Context) ([]agentapi.Subflow, error) {
	var subflows []agentapi.Subflow
	return subflows, c.get(ctx, pathSubflows, &subflows)
}

// Rules lists what the rules did. It fails with ErrNoAgent where none serves.
func (c *Client) Rules(ctx context.Context) ([]agentapi.Rule, error) {
	var rules []agentapi.Rule
	return rules, c.get(ctx, pathRules, &rules)
}

// Spreading lists what pods' traffic does. It fails with ErrNoAgent where none serves.
func (c *Client) Spreading(ctx context.Context) ([]agentapi.Spreading, error) {
	var spreading []agentapi.Spreading
	return spreading, c.get(ctx, pathSpreading, &spreading)
}

// Events calls visit for each event that the agent remembers and, to follow, for
// those to come, until visit fails, the context ends or the agent does.
func (c *Client) Events(ctx context.Context, follow bool, visit func(agentapi.Event) error) error {
	body, err := c.open(ctx, fmt.Sprintf("%s?follow=%t", pathEvents, follow))
	if err != nil {
		return err
	}
	defer body.Close()
	for decoder := json.NewDecoder(body); ; {
		var event agentapi.Event
		err := decoder.Decode(&event)
		if errors.Is(err, io.EOF) || ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading events: %w", err)
		}
		if err := visit(event); err != nil {
			return err
		}
	}
}

func (c *Client) get(ctx context.Context, path string, value any) error {
	body, err := c.open(ctx, path)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(value); err != nil {
		return fmt.Errorf("reading the agent's answer: %w", err)
	}
	return nil
}

func (c *Client) open(ctx context.Context, path string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("asking the agent: %w", err)
	}
	response, err := c.http.Do(request)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, fmt.Errorf("%w: %w", ErrNoAgent, err)
	}
	if err != nil {
		return nil, fmt.Errorf("asking the agent: %w", err)
	}
	if response.StatusCode == http.StatusOK {
		return response.Body, nil
	}
	defer response.Body.Close()
	reason, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
	return nil, fmt.Errorf("the agent answered %s: %s", response.Status, strings.TrimSpace(string(reason)))
}
