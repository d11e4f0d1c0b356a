// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"golang.org/x/sys/unix"

	"braid.dev/braid/api/v1alpha1"
)

// ConfigMaps gets compiled programs from ConfigMaps.
type ConfigMaps interface {
	// Content returns the bytes at a key of the binaryData of a ConfigMap in
	// Braid's own namespace.
	Content(ctx context.Context, name, key string) ([]byte, error)
}

// ConfigMapsOf reads the ConfigMaps of a namespace through a reader.
func ConfigMapsOf(reader client.Reader, namespace string) ConfigMaps {
	return configMaps{reader, namespace}
}

// readTimeout keeps an API server that does not answer from holding up the endpoints
// whose rules run no program.
const readTimeout = 5 * time.Second

type configMaps struct {
	reader    client.Reader
	namespace string
}

func (c configMaps) Content(ctx context.Context, name, key string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var found corev1.ConfigMap
	if err := c.reader.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: name}, &found); err != nil {
		return nil, fmt.Errorf("getting ConfigMap %s/%s: %w", c.namespace, name, err)
	}
	content, there := found.BinaryData[key]
	if !there {
		return nil, refuse("ConfigMap ", c.namespace, "/", name, " has no key ", key, " in binaryData")
	}
	return content, nil
}

// read returns the compiled object of a program.
func (m *Manager) read(ctx context.Context, b *v1alpha1.Program) ([]byte, error) {
	switch {
	case b.ConfigMap != nil && m.options.ConfigMaps != nil:
		return m.options.ConfigMaps.Content(ctx, b.ConfigMap.Name, b.ConfigMap.Key)
	case b.ConfigMap != nil:
		return nil, refuse("this agent takes no programs from ConfigMaps")
	case b.File != "" && m.options.Directory != "":
		return readFile(m.options.Directory, b.File)
	case b.File != "":
		return nil, refuse("this agent takes no programs from files")
	}
	return nil, refuse("the program names neither a ConfigMap nor a file")
}

// fileName is what a program's file may be called: nothing that leads elsewhere.
var fileName = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9_.]{0,252}$`)

// readFile reads a program from the directory of programs. What runs in the kernel is
// root's to give: neither the directory nor the file may be writable by others.
func readFile(directory, name string) (_ []byte, err error) {
	if !fileName.MatchString(name) {
		return nil, refuse(fmt.Sprintf("%.64q is not the name of a file in the directory of programs", name))
	}
	root, err := os.OpenRoot(directory)
	if err != nil {
		return nil, fmt.Errorf("opening the directory of programs: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	if err := ownedByRoot(root, "."); err != nil {
		return nil, err
	}
	// Without waiting for a writer, should it be a pipe.
	file, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening a program: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := judgeFile(file, name); err != nil {
		return nil, err
	}
	source, err := io.ReadAll(io.LimitReader(file, maxObject+1))
	if err != nil {
		return nil, fmt.Errorf("reading a program: %w", err)
	}
	return source, nil
}

func ownedByRoot(root *os.Root, name string) error {
	directory, err := root.Open(name)
	if err != nil {
		return fmt.Errorf("opening the directory of programs: %w", err)
	}
	err = judgeOwner(directory, "the directory of programs")
	return errors.Join(err, directory.Close())
}

func judgeFile(file *os.File, name string) error {
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("looking at a program: %w", err)
	}
	if !info.Mode().IsRegular() {
		return refuse(name, " is not a regular file")
	}
	return judgeOwner(file, name)
}

func judgeOwner(file *os.File, what string) error {
	var status unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &status); err != nil {
		return fmt.Errorf("looking at the owner of %s: %w", what, err)
	}
	if status.Uid != 0 || status.Mode&(unix.S_IWGRP|unix.S_IWOTH) != 0 {
		return refuse(what, " must belong to root and be writable by nobody else")
	}
	return nil
}
