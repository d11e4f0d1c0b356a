// SPDX-License-Identifier: Apache-2.0

package datapath

import "time"

// pickUpFor is how long flows are picked up after a path has first led to another node. What they
// cost those that are none of MPTCP ends with it, and the next round.
const pickUpFor = time.Minute

// youngPeers is the time in which a path leads to some other node that did not long before. Agents
// start one after the other, and hear of each other later than of their pods: a connection that
// began meanwhile would never leave the cluster network's route, nor would its subflows.
type youngPeers struct{ until time.Time }

func (y *youngPeers) note(now time.Time) { y.until = now.Add(pickUpFor) }

func (y *youngPeers) is(now time.Time) bool { return now.Before(y.until) }
