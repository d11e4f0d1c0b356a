// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"container/heap"
	"time"
)

// queue orders connections by when they are due.
type queue []*connection

// put adds a connection, or moves it to where it belongs now.
func (q *queue) put(c *connection) {
	if c.place < 0 {
		heap.Push((*order)(q), c)
	} else {
		heap.Fix((*order)(q), c.place)
	}
}

func (q *queue) remove(c *connection) {
	if c.place >= 0 {
		heap.Remove((*order)(q), c.place)
	}
}

// first is when the first connection is due.
func (q queue) first() (time.Time, bool) {
	if len(q) == 0 {
		return time.Time{}, false
	}
	return q[0].due, true
}

// until lists the connections that are due, in no order.
func (q queue) until(now time.Time) (due []*connection) {
	q.visit(0, now, &due)
	return due
}

// visit follows the heap only as far as something is due.
func (q queue) visit(i int, now time.Time, due *[]*connection) {
	if i >= len(q) || q[i].due.After(now) {
		return
	}
	*due = append(*due, q[i])
	q.visit(2*i+1, now, due)
	q.visit(2*i+2, now, due)
}

// order is the queue as package heap wants it.
type order []*connection

func (o order) Len() int           { return len(o) }
func (o order) Less(i, j int) bool { return o[i].due.Before(o[j].due) }

func (o order) Swap(i, j int) {
	o[i], o[j] = o[j], o[i]
	o[i].place, o[j].place = i, j
}

func (o *order) Push(x any) {
	c := x.(*connection)
	c.place = len(*o)
	*o = append(*o, c)
}

func (o *order) Pop() any {
	last := (*o)[len(*o)-1]
	last.place = -1
	(*o)[len(*o)-1] = nil
	*o = (*o)[:len(*o)-1]
	return last
}
