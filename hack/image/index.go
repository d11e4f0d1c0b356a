// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// writeIndex makes one OCI archive of the images of several architectures, each
// given as ARCH=PROGRAM[,PROGRAM...], and prints its digest. With provenance it also
// writes that file, which says that they come from commit.
func writeIndex(programs []string, reference, user, output, provenance, commit string) error {
	tag, err := name.NewTag(reference)
	if err != nil {
		return fmt.Errorf("reading --name: %w", err)
	}
	index := v1.ImageIndex(empty.Index)
	for _, pair := range programs {
		architecture, files, ok := strings.Cut(pair, "=")
		if !ok {
			return fmt.Errorf("reading %q: must be ARCH=PROGRAM[,PROGRAM...]", pair)
		}
		image, err := build(contents{programs: list(files)}, architecture, user)
		if err != nil {
			return err
		}
		platform := &v1.Platform{OS: "linux", Architecture: architecture}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	digest, err := index.Digest()
	if err != nil {
		return fmt.Errorf("computing the images' digest: %w", err)
	}
	fmt.Println(digest)
	if provenance != "" {
		if err := writeProvenance(provenance, commit, tag, programs, index); err != nil {
			return err
		}
	}
	return archive(index, tag, output)
}

// archive writes an index as an archive of an OCI layout.
func archive(index v1.ImageIndex, tag name.Tag, output string) (err error) {
	directory, err := os.MkdirTemp("", "image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	path, err := layout.Write(directory, empty.Index)
	if err != nil {
		return fmt.Errorf("making a layout: %w", err)
	}
	// By the first ctr names the image, by the second others do.
	names := map[string]string{"io.containerd.image.name": tag.Name(), "org.opencontainers.image.ref.name": tag.TagStr()}
	if err := path.ReplaceIndex(index, match.Name(tag.Name()), layout.WithAnnotations(names)); err != nil {
		return fmt.Errorf("writing the images: %w", err)
	}
	return pack(directory, output)
}

// pack makes an archive of a directory, with the same rights whatever the umask is.
func pack(directory, output string) error {
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			return os.Chmod(path, 0o755)
		default:
			return os.Chmod(path, 0o644)
		}
	})
	if err != nil {
		return err
	}
	file, err := os.Create(output)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	w := tar.NewWriter(file)
	if err := errors.Join(addAll(w, directory), w.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", output, err)
	}
	return file.Close()
}
