// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"context"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// memoryInterval is how often it is looked at what waits, and memoryShare of the time of a
	// processor, one part in so many, is what may be spent on that.
	memoryInterval = 250 * time.Millisecond
	memoryShare    = 50
	// The same from where a part of what may wait, one in so many, waits: it may grow fast.
	nearPart     = 4
	nearInterval = 50 * time.Millisecond
	nearShare    = 5
	// presumedWaiting is how many bytes may wait where no limit of the container is known.
	presumedWaiting = 256 << 20
	// waitingPart of that limit, one in so many, may wait: a packet takes up to twice the bytes
	// that it brings, and what waits may double until the next look.
	waitingPart = 4
)

// memory bounds what waits in the sockets of all that is relayed, for clients or servers that
// do not read: it counts towards the one limit of the proxy's container, beyond which the
// kernel would end the connections of all clients.
type memory struct {
	most int

	mu       sync.Mutex
	all      int
	byTenant map[string]int
}

// waiting is what waits in a connection.
type waiting struct {
	connection *connection
	bytes      int
}

// mayBegin is false for a tenant of whom as much waits as others have left.
func (m *memory) mayBegin(tenant string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byTenant[tenant] < m.most-m.all
}

// note keeps what was found, and returns whose connections are to end, and how many bytes too
// many wait.
func (m *memory) note(found map[string][]waiting) (tenant string, excess int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all, m.byTenant = 0, map[string]int{}
	for of, connections := range found {
		for _, one := range connections {
			m.byTenant[of] += one.bytes
		}
		m.all += m.byTenant[of]
		if m.byTenant[of] > m.byTenant[tenant] {
			tenant = of
		}
	}
	return tenant, m.all - m.most
}

// pause is how long it is until the next look, after one that took so much time of a processor.
func (m *memory) pause(took time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all >= m.most/nearPart {
		return max(nearInterval, nearShare*took)
	}
	return max(memoryInterval, memoryShare*took)
}

// boundMemory looks until the context ends.
func (p *Proxy) boundMemory(ctx context.Context) {
	runtime.LockOSThread() // for processorTime: a look that waits for a processor does not put off the next one
	defer runtime.UnlockOSThread()
	pause := time.NewTimer(memoryInterval)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		begun := processorTime()
		p.lookAtMemory()
		pause.Reset(p.memory.pause(processorTime() - begun))
	}
}

// processorTime is what the calling thread had of processors so far.
func processorTime() time.Duration {
	var had unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &had) // it fails nowhere on Linux
	return time.Duration(had.Nano())
}

// lookAtMemory resets the connections in which most waits of the tenant of whom most waits,
// where all together have too much.
func (p *Proxy) lookAtMemory() {
	found := p.waiting()
	tenant, excess := p.memory.note(found)
	if excess <= 0 {
		return
	}
	of, ended := found[tenant], 0
	slices.SortFunc(of, func(a, b waiting) int { return cmp.Compare(b.bytes, a.bytes) })
	for ; ended < len(of) && excess > 0; ended++ {
		excess -= of[ended].bytes
		of[ended].connection.abort()
	}
	p.outcomes.reset.Add(uint64(ended))
	p.options.Log.Info("Reset connections of a namespace: too much waits in them for those that do not read", "namespace", tenant, "connections", ended)
}

// waiting is what waits in all that is relayed, by tenant.
func (p *Proxy) waiting() map[string][]waiting {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := map[string][]waiting{}
	for _, r := range p.relays {
		r.mu.Lock()
		for c := range r.open {
			if bytes := waitingIn(c.client) + waitingIn(c.server) + int(c.carried.Load()); bytes > 0 {
				found[r.client.Tenant] = append(found[r.client.Tenant], waiting{c, bytes})
			}
		}
		r.mu.Unlock()
	}
	return found
}

// waitingIn are the bytes that one end has not read, or that its peer has not acknowledged.
func waitingIn(end *net.TCPConn) (bytes int) {
	raw, err := end.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { // it fails where the connection is over
		for _, request := range []uint{unix.SIOCINQ, unix.SIOCOUTQ} {
			if n, err := unix.IoctlGetInt(int(fd), request); err == nil {
				bytes += n
			}
		}
	})
	return bytes
}

// mostWaiting is a part of the container's limit.
func mostWaiting(limitFile string) int {
	text, err := os.ReadFile(limitFile) //nolint:gosec // the cgroup's own
	if err != nil {
		return presumedWaiting
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || limit <= 0 { // "max"
		return presumedWaiting
	}
	return limit / waitingPart
}
