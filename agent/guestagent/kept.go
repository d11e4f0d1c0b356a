// SPDX-License-Identifier: Apache-2.0

package guestagent

import (
	"encoding/json"
	"errors"
	"fmt"
)

// keptAt is where a guest itself has what its limits were, for the node to which it moves. As
// the limits it is gone after a reboot.
const keptAt = "/run/braid-mptcp-limits"

// keep writes into the guest what is about to be changed. A guest that does not take it is
// put back by this node alone.
func (c *channel) keep(is change) error {
	text, err := json.Marshal(is)
	if err != nil {
		return fmt.Errorf("encoding a guest's limits: %w", err)
	}
	_, err = c.feed(text, "tee", keptAt)
	return unlessRefused(err)
}

// kept is what a node wrote into the guest; nil where none did.
func (c *channel) kept() (*change, error) {
	text, err := c.run("cat", keptAt)
	if err != nil {
		return nil, unlessRefused(err)
	}
	is := &change{}
	if json.Unmarshal([]byte(text), is) != nil || !is.Before.possible() || !is.Set.possible() {
		return nil, nil // the tenant's own words: it keeps its limits
	}
	return is, nil
}

func (c *channel) forget() error {
	_, err := c.run("rm", "-f", keptAt)
	return unlessRefused(err)
}

func unlessRefused(err error) error {
	if errors.As(err, new(*refusal)) {
		return nil
	}
	return err
}

// possible: Linux has no others.
func (l limits) possible() bool {
	return l.AcceptedAddresses >= 0 && l.AcceptedAddresses <= enough && l.Subflows >= 0 && l.Subflows <= enough
}
