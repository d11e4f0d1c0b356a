// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// contents are what etcd had at a revision, by key. Etcd takes and gives keys and values
// in base64, as JSON does bytes.
type contents struct {
	values   map[string][]byte
	revision int64
}

// ofTheServer are what the server itself keeps up. Without the first one, by which API servers
// agree on what etcd forgets, it panics some minutes later.
var ofTheServer = []string{
	"compact_rev_key",
	"/registry/apiregistration.k8s.io/", "/registry/configmaps/kube-system/", "/registry/endpointslices/default/kubernetes",
	"/registry/flowschemas/", "/registry/ipaddresses/", "/registry/leases/kube-system/", "/registry/masterleases/", "/registry/namespaces/kube-",
	"/registry/peerserverleases/", "/registry/prioritylevelconfigurations/", "/registry/ranges/", "/registry/servicecidrs/",
	"/registry/services/endpoints/default/kubernetes", "/registry/services/specs/default/kubernetes",
}

// ofTests is true for what tests make and change.
func ofTests(key string) bool {
	return !slices.ContainsFunc(ofTheServer, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// keyValue is a key as etcd tells it.
type keyValue struct {
	Key         []byte `json:"key"`
	Value       []byte `json:"value"`
	ModRevision int64  `json:"mod_revision,string"`
}

// answer is what etcd answers to all that is asked of it here.
type answer struct {
	Header struct {
		Revision int64 `json:"revision,string"`
	} `json:"header"`
	KVs []keyValue `json:"kvs"`
}

// ask sends a request to etcd's gateway of JSON.
func (s *Server) ask(ctx context.Context, method string, question any) (*answer, error) {
	body, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, loopbackURL(s.ports.etcd)+"/v3/kv/"+method, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("asking etcd: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("etcd answers %s to %s", response.Status, method)
	}
	var a answer
	if err := json.NewDecoder(response.Body).Decode(&a); err != nil {
		return nil, fmt.Errorf("reading what etcd answers to %s: %w", method, err)
	}
	return &a, nil
}

// list reads all keys, and with them their values where these are wanted.
func (s *Server) list(ctx context.Context, values bool) (*answer, error) {
	return s.ask(ctx, "range", map[string]any{"key": []byte{0}, "range_end": []byte{0}, "keys_only": !values})
}

// read reads what tests may change.
func (s *Server) read(ctx context.Context) (*contents, error) {
	all, err := s.list(ctx, true)
	if err != nil {
		return nil, err
	}
	c := &contents{values: map[string][]byte{}, revision: all.Header.Revision}
	for _, kv := range all.KVs {
		if key := string(kv.Key); ofTests(key) {
			c.values[key] = kv.Value
		}
	}
	return c, nil
}

// restore makes the contents what they were. The server sees that as it sees other changes.
func (s *Server) restore(ctx context.Context, c *contents) error {
	now, err := s.list(ctx, false)
	if err != nil {
		return err
	}
	var operations []any
	changed := maps.Clone(c.values)
	for _, kv := range now.KVs {
		key := string(kv.Key)
		_, known := c.values[key]
		switch {
		case !ofTests(key):
		case !known:
			operations = append(operations, map[string]any{"request_delete_range": map[string]any{"key": kv.Key}})
		case kv.ModRevision <= c.revision:
			delete(changed, key)
		}
	}
	for key, value := range changed {
		operations = append(operations, map[string]any{"request_put": map[string]any{"key": []byte(key), "value": value}})
	}
	return s.carryOut(ctx, operations, c)
}

// carryOut changes etcd's contents, as many of them at a time as it takes.
func (s *Server) carryOut(ctx context.Context, operations []any, c *contents) error {
	const atOnce = 100
	for some := range slices.Chunk(operations, atOnce) {
		done, err := s.ask(ctx, "txn", map[string]any{"success": some})
		if err != nil {
			return err
		}
		c.revision = done.Header.Revision
	}
	return nil
}
