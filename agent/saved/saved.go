// SPDX-License-Identifier: Apache-2.0

// Package saved keeps on disk what an agent last read from the API server, so that the
// next one can start from it where the API server cannot be reached.
package saved

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
)

// DefaultPath is the directory of the file, unless an agent is told another. It must
// outlive a reboot.
const DefaultPath = "/var/lib/braid"

const (
	// FileName is the file in that directory.
	FileName = "last-read.json"
	// version of the file's format. A file of another version is not read: change it
	// with the meaning of a field.
	version = 1
	// mostBytes is the largest file that is written or read: enough for a plan of the
	// largest size and 16,384 nodes.
	mostBytes = 64 << 20
	magic     = "braid-agent-last-read"
)

// State is what an agent reads from the API server.
type State struct {
	// Node is the agent's own; empty where there was none.
	Node corev1.Node `json:"node"`
	// Plan is nil where there was none.
	Plan *v1alpha1.MPTCPNodePlan `json:"plan,omitempty"`
	// Nodes are all nodes' MPTCPNodes.
	Nodes []v1alpha1.MPTCPNode `json:"nodes,omitempty"`
}

// File is a state as it was written.
type File struct {
	// NodeName is the name of the agent's Node.
	NodeName string `json:"nodeName"`
	// Time is when it was written.
	Time time.Time `json:"time"`
	State
}

// Read reads what an agent of this node wrote into the directory. The error is
// os.ErrNotExist where none did.
func Read(directory, nodeName string) (*File, error) {
	content, err := readFile(filepath.Join(directory, FileName))
	if err != nil {
		return nil, fmt.Errorf("failed to read what the last agent saved: %w", err)
	}
	file, err := decode(content)
	if err != nil {
		return nil, fmt.Errorf("failed to read what the last agent saved: %w", err)
	}
	if file.NodeName != nodeName {
		return nil, fmt.Errorf("what the last agent saved is of node %.64q, not of %s", file.NodeName, nodeName)
	}
	return file, nil
}

// readFile reads what root alone could have written.
func readFile(path string) (_ []byte, err error) {
	// Without waiting for a writer, should it be a pipe.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	var status unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &status); err != nil {
		return nil, fmt.Errorf("failed to look at %s: %w", path, err)
	}
	if status.Mode&unix.S_IFMT != unix.S_IFREG || int(status.Uid) != os.Geteuid() || status.Mode&(unix.S_IWGRP|unix.S_IWOTH) != 0 {
		return nil, fmt.Errorf("%s is not a file that the agent alone may write", path)
	}
	if status.Size > mostBytes {
		return nil, fmt.Errorf("%s has %d bytes; %d are read at most", path, status.Size, mostBytes)
	}
	return io.ReadAll(io.LimitReader(file, mostBytes))
}

// encode puts a line before the content that tells its version and whether it is
// whole.
func encode(file *File) ([]byte, error) {
	content, err := json.Marshal(file)
	if err != nil {
		return nil, err
	}
	return append(header(content), content...), nil
}

func header(content []byte) []byte {
	sum := sha256.Sum256(content)
	return []byte(magic + " " + strconv.Itoa(version) + " " + hex.EncodeToString(sum[:]) + "\n")
}

func decode(data []byte) (*File, error) {
	line, content, _ := bytes.Cut(data, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) != 3 || string(fields[0]) != magic {
		return nil, errors.New("it is not a file of an agent")
	}
	if string(fields[1]) != strconv.Itoa(version) {
		return nil, fmt.Errorf("it has version %.20q, and this agent reads version %d", fields[1], version)
	}
	if !bytes.Equal(append(line, '\n'), header(content)) {
		return nil, errors.New("it is damaged: its checksum is another")
	}
	file := &File{}
	if err := json.Unmarshal(content, file); err != nil {
		return nil, fmt.Errorf("it is not as this agent writes it: %w", err)
	}
	return file, nil
}

// trim leaves out what a start does not need: what others measure, and bookkeeping.
func trim(state State) State {
	trimmed := State{Node: corev1.Node{ObjectMeta: identity(&state.Node.ObjectMeta)}}
	trimmed.Node.Spec.PodCIDRs = state.Node.Spec.PodCIDRs
	trimmed.Node.Status.Addresses = state.Node.Status.Addresses
	if state.Plan != nil {
		trimmed.Plan = &v1alpha1.MPTCPNodePlan{ObjectMeta: identity(&state.Plan.ObjectMeta), Spec: state.Plan.Spec}
	}
	for i := range state.Nodes {
		node := state.Nodes[i]
		node.TypeMeta, node.ObjectMeta = metav1.TypeMeta{}, identity(&node.ObjectMeta)
		node.Status = v1alpha1.MPTCPNodeStatus{Addresses: node.Status.Addresses, Paths: Ways(node.Status.Paths)}
		trimmed.Nodes = append(trimmed.Nodes, node)
	}
	slices.SortFunc(trimmed.Nodes, func(a, b v1alpha1.MPTCPNode) int { return cmp.Compare(a.Name, b.Name) })
	return trimmed
}

// Ways are a node's paths without what its agent measures there.
func Ways(measured []v1alpha1.NodePath) []v1alpha1.NodePath {
	ways := make([]v1alpha1.NodePath, 0, len(measured))
	for _, path := range measured {
		ways = append(ways, v1alpha1.NodePath{
			Name: path.Name, Interface: path.Interface, Addresses: path.Addresses, State: path.State, Message: path.Message,
		})
	}
	return ways
}

func identity(of *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: of.Name, UID: of.UID, Generation: of.Generation}
}
