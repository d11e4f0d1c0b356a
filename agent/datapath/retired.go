// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"maps"
	"time"

	"braid.dev/braid/agent/node"
)

// clearAgain is how long after the flows were cleared of numbers that stay retired they are
// again: a handshake of before may have become a flow.
const clearAgain = 15 * time.Second

// cleared are the retired numbers that no flow has any more. Reading all flows takes tens of
// milliseconds where there are many, and a number may stay retired for minutes.
type cleared struct {
	numbers node.Numbers
	at      time.Time // when all of them were looked for
}

// due are the retired numbers that flows may have. One that is not retired any more may be
// somebody's again.
func (c *cleared) due(retired node.Numbers, now time.Time) node.Numbers {
	for kind, numbers := range c.numbers {
		maps.DeleteFunc(numbers, func(number uint32, _ bool) bool { return !retired[kind][number] })
	}
	if now.Sub(c.at) >= clearAgain {
		return retired
	}
	due := node.Numbers{}
	for kind, numbers := range retired {
		due[kind] = maps.Clone(numbers)
		maps.DeleteFunc(due[kind], func(number uint32, _ bool) bool { return c.numbers[kind][number] })
	}
	return due
}

// note says that the flows were cleared of those that were due then.
func (c *cleared) note(retired node.Numbers, now time.Time) {
	if now.Sub(c.at) >= clearAgain {
		c.at = now
	}
	c.numbers = node.Numbers{}
	for kind, numbers := range retired {
		c.numbers[kind] = maps.Clone(numbers)
	}
}
