// SPDX-License-Identifier: Apache-2.0

package actors_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"braid.dev/braid/hack/lab/network"
)

func TestDev(t *testing.T) {
	var rtt, mbit, direction int
	fmt.Sscan(os.Getenv("DEV"), &rtt, &mbit, &direction)
	n := newNode(t, time.Duration(rtt)*time.Millisecond)
	if mbit > 0 {
		n.rule(t, 1<<direction, action{kind: rateLimit, mechanism: auto, rate: uint64(mbit) * 125_000})
	} else {
		n.rule(t, 3, action{kind: 7})
	}
	ends := [][2]*network.Pod{{n.guest, n.other}, {n.other, n.guest}}[direction]
	listener, err := ends[1].Listen(context.Background(), "tcp", net.JoinHostPort(ends[1].IPv4, "0"))
	check(t, err)
	defer listener.Close()
	var arrived atomic.Int64
	go func() { receiveAll(listener, &arrived) }()
	connection, err := ends[0].Dial(context.Background(), "tcp", listener.Addr().String())
	check(t, err)
	go sendUntil(connection, time.Now().Add(5*time.Second))
	last := int64(0)
	for i := 0; i < 20; i++ {
		time.Sleep(250 * time.Millisecond)
		a := arrived.Load()
		for _, s := range n.records(t) {
			t.Logf("%.2f Mbit/s mech %d why %d RTT %d %d W %d f %.2f inflight %d retr %d", float64(a-last)*8/.25/1e6, s.Limit[direction].InUse, s.Limit[direction].Why, s.Traffic[0].SmoothedRtt, s.Traffic[1].SmoothedRtt, s.Window[direction].Window,
				float64(s.Window[direction].Loop.Factor)/65536, s.Traffic[direction].Highest-s.Window[direction].Acknowledged, s.Traffic[direction].Retransmitted)
		}
		last = a
	}
	connection.Close()
}
