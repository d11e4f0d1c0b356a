// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"k8s.io/apimachinery/pkg/types"
)

// kind is what a row is of.
type kind uint32

const (
	ofPath kind = iota + 1
	ofEndpoint
	ofTenant
)

// rowsOf are the first row of a kind and the one after the last.
var rowsOf = map[kind][2]uint32{ofPath: {0, slots}, ofEndpoint: {1, mostRows + 1}, ofTenant: {1, mostRows + 1}}

// rowName is the key under which a row is kept for the next agent.
type rowName struct {
	Kind kind
	Name [nameLength]byte
}

func nameOf(k kind, name string) rowName {
	row := rowName{Kind: k}
	copy(row.Name[:], name)
	return row
}

func (n *rowName) String() string { return string(bytes.TrimRight(n.Name[:], "\x00")) }

// book is what the rows of the maps stand for. Paths, endpoints and tenants keep
// theirs while they exist, also over a restart of the agent: their counters go on.
type book struct {
	rows      map[rowName]uint32
	paths     []bookedPath
	tenants   map[string]*bookedTenant // by namespace
	endpoints map[types.UID]*bookedEndpoint
}

// bookedPath is a path of the node; all rates are in bits a second, 0 for none.
type bookedPath struct {
	name     string
	slot     uint32
	capacity float64 // where shares are to be kept
}

// bookedTenant is a namespace with guarded endpoints.
type bookedTenant struct {
	row      uint32
	ceilings [slots]float64
	weights  [slots]int32
}

// weight is the tenant's part of a path in relation to others.
func (t *bookedTenant) weight(slot uint32) float64 { return float64(max(1, t.weights[slot])) }

type bookedEndpoint struct {
	row             uint32
	namespace, name string
	maxRate         float64
}

func readBook(o *objects) (*book, error) {
	b := &book{rows: map[rowName]uint32{}, tenants: map[string]*bookedTenant{}, endpoints: map[types.UID]*bookedEndpoint{}}
	var name rowName
	var row uint32
	entries := o.names.Iterate()
	for entries.Next(&name, &row) {
		b.rows[name] = row
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("reading the names of rows: %w", err)
	}
	return b, nil
}

// assign gives each of the names a row: the one it had, or a free one, which reset
// empties first. Rows of names that are gone become free.
func (b *book) assign(o *objects, k kind, names []string, reset func(row uint32) error) error {
	wanted := map[rowName]bool{}
	for _, name := range names {
		wanted[nameOf(k, name)] = true
	}
	used := map[uint32]bool{}
	for name, row := range b.rows {
		switch {
		case name.Kind != k:
		case wanted[name]:
			used[row] = true
			delete(wanted, name)
		default:
			if err := o.names.Delete(name); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return fmt.Errorf("forgetting the row of %s: %w", name.String(), err)
			}
			delete(b.rows, name)
		}
	}
	next := rowsOf[k][0]
	for _, text := range names {
		name := nameOf(k, text)
		if !wanted[name] {
			continue
		}
		for used[next] {
			next++
		}
		if next >= rowsOf[k][1] {
			return fmt.Errorf("there is no row for %s: a node can have %d", text, rowsOf[k][1]-rowsOf[k][0])
		}
		used[next] = true
		delete(wanted, name)
		if err := errors.Join(reset(next), o.names.Put(name, next)); err != nil {
			return fmt.Errorf("giving %s a row: %w", text, err)
		}
		b.rows[name] = next
	}
	return nil
}

func (b *book) row(k kind, name string) uint32 { return b.rows[nameOf(k, name)] }
