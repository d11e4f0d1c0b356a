// SPDX-License-Identifier: Apache-2.0

package guestagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// limits are those of MPTCP in a guest's kernel.
type limits struct {
	AcceptedAddresses int `json:"acceptedAddresses"`
	Subflows          int `json:"subflows"`
}

// enough is what Linux has at most. A subflow that ends does not give back that an
// announcement was taken, so as many as there are subflows are not enough.
const enough = 8

// parseLimits reads what `ip mptcp limits show` prints, such as
// "add_addr_accepted 0 subflows 2".
func parseLimits(text string) (is limits, err error) {
	fields := strings.Fields(text)
	if len(fields) != 4 || fields[0] != "add_addr_accepted" || fields[2] != "subflows" {
		return is, &refusal{fmt.Sprintf("ip mptcp limits in the guest prints "+quoted, text)}
	}
	for at, of := range map[int]*int{1: &is.AcceptedAddresses, 3: &is.Subflows} {
		value, err := strconv.ParseUint(fields[at], 10, 8)
		if err != nil {
			return is, &refusal{fmt.Sprintf("ip mptcp limits in the guest prints "+quoted, text)}
		}
		*of = int(value)
	}
	return is, nil
}

func (c *channel) limits() (limits, error) {
	printed, err := c.run("ip", "mptcp", "limits", "show")
	if err != nil {
		return limits{}, err
	}
	return parseLimits(printed)
}

func (c *channel) setLimits(to limits) error {
	_, err := c.run("ip", "mptcp", "limits", "set",
		"add_addr_accepted", strconv.Itoa(to.AcceptedAddresses), "subflows", strconv.Itoa(to.Subflows))
	if err != nil {
		return err
	}
	is, err := c.limits()
	if err == nil && is != to {
		err = &refusal{fmt.Sprintf("the guest's limits were set to %+v and are %+v", to, is)}
	}
	return err
}

// raise brings a guest's limits to what announcements need, and records before what they
// were: here, and in the guest, for the node to which it may move.
func (p *Part) raise(ctx context.Context, who target) error {
	return p.with(ctx, who.place, func(c *channel) error {
		now, err := c.limits()
		if err != nil {
			return err
		}
		before, err := p.before(c, who, now)
		if err != nil {
			return err
		}
		to := limits{max(now.AcceptedAddresses, enough), max(now.Subflows, enough)}
		if now == to {
			return nil
		}
		is := change{Before: before.underneath(who, now), Set: to}
		if err := errors.Join(p.write(&record{who, is}), c.keep(is)); err != nil {
			return err
		}
		return c.setLimits(to)
	})
}

// before is what was recorded of a guest, by another node too, whose word is in the guest; nil
// where nothing was.
func (p *Part) before(c *channel, who target, now limits) (*record, error) {
	is, err := p.read(who.UID)
	if !errors.Is(err, os.ErrNotExist) || now.AcceptedAddresses < enough && now.Subflows < enough || p.knows(who) {
		return is, ignoreMissing(err)
	}
	kept, err := c.kept()
	if err != nil || kept == nil {
		return nil, err
	}
	is = &record{who, *kept}
	return is, p.write(is)
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// underneath are the limits that a guest had, or has by itself since: what is still as it was
// set before is none of its own.
func (r *record) underneath(who target, now limits) limits {
	if r == nil || r.place != who.place {
		return now
	}
	return back(now, r.change)
}

// back is what limits become where those that were set are put back; others have changed them
// where they are not as set.
func back(now limits, is change) limits {
	if now.AcceptedAddresses == is.Set.AcceptedAddresses {
		now.AcceptedAddresses = is.Before.AcceptedAddresses
	}
	if now.Subflows == is.Set.Subflows {
		now.Subflows = is.Before.Subflows
	}
	return now
}

// restore puts a guest's limits back, and forgets them. A machine that is gone has none.
func (p *Part) restore(ctx context.Context, r *record) error {
	err := p.with(ctx, r.place, func(c *channel) error {
		now, err := c.limits()
		if err != nil {
			return err
		}
		if to := back(now, r.change); to != now {
			if err := c.setLimits(to); err != nil {
				return err
			}
		}
		return c.forget()
	})
	if err != nil && !errors.Is(err, errGone) {
		return err
	}
	return p.forget(r.UID)
}
