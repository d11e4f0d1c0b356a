// SPDX-License-Identifier: Apache-2.0

// Command image makes the images of Braid without a container runtime and
// without a registry: one archive for each image, in the form that
// `ctr images import`, `docker load` and `kind load image-archive` read, and on
// request a bill of what is in it. Equal programs make equal files.
//
// With arguments ARCH=PROGRAM[,PROGRAM...] it makes one OCI archive of all these architectures.
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	programs := flag.String("programs", "", "static programs, separated by commas, to be the image's only files; it runs the first")
	root := flag.String("root", "", "directory to be the image's root, in the place of --programs")
	reference := flag.String("name", "", "name of the image, such as braid.dev/braid-agent:0.1.0")
	architecture := flag.String("arch", "amd64", "architecture of the program, as Go names it")
	user := flag.String("user", "65532:65532", "user and group that it runs as")
	output := flag.String("output", "", "archive to write")
	sbom := flag.String("sbom", "", "file to write what is in the image of programs to, as CycloneDX JSON")
	provenance := flag.String("provenance", "", "file to write where the OCI archive of several architectures comes from to, as SLSA provenance")
	commit := flag.String("commit", "", "what the provenance calls the source's commit; \"-modified\" after it where the sources have changes")
	flag.Parse()
	var err error
	if flag.NArg() > 0 {
		err = writeIndex(flag.Args(), *reference, *user, *output, *provenance, *commit)
	} else {
		err = write(contents{programs: list(*programs), root: *root}, *reference, *architecture, *user, *output, *sbom)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// list takes apart what stands between commas.
func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

func write(contents contents, reference, architecture, user, output, sbom string) error {
	tag, err := name.NewTag(reference)
	if err != nil {
		return fmt.Errorf("reading --name: %w", err)
	}
	image, err := build(contents, architecture, user)
	if err != nil {
		return err
	}
	if err := tarball.WriteToFile(output, tag, image); err != nil {
		return fmt.Errorf("writing %s: %w", output, err)
	}
	if sbom == "" {
		return nil
	}
	return writeSBOM(sbom, contents.programs, tag, image)
}

func build(contents contents, architecture, user string) (v1.Image, error) {
	packed, err := contents.pack()
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed)), nil })
	if err != nil {
		return nil, fmt.Errorf("making the layer: %w", err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, fmt.Errorf("adding the layer: %w", err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("reading the image's configuration: %w", err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", architecture
	config.Config = v1.Config{Entrypoint: contents.entrypoint(), User: user}
	return mutate.ConfigFile(image, config)
}

// contents are programs, or everything in a directory.
type contents struct {
	programs []string
	root     string
}

func (c contents) entrypoint() []string {
	if len(c.programs) == 0 {
		return nil
	}
	return []string{"/" + filepath.Base(c.programs[0])}
}

// pack makes an archive with no time in it.
func (c contents) pack() ([]byte, error) {
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, program := range c.programs {
		if err := add(w, program, filepath.Base(program), 0o755); err != nil {
			return nil, fmt.Errorf("packing the image: %w", err)
		}
	}
	if c.root != "" {
		if err := addAll(w, c.root); err != nil {
			return nil, fmt.Errorf("packing the image: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("packing the image: %w", err)
	}
	return packed.Bytes(), nil
}

func add(w *tar.Writer, path, name string, mode int64) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}

// addAll adds files, directories and links of a directory, in the order of names.
func addAll(w *tar.Writer, root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		switch mode := int64(info.Mode().Perm()); info.Mode().Type() {
		case 0:
			return add(w, path, name, mode)
		case fs.ModeDir:
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode})
		case fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: mode})
		}
		return nil // devices and the like are the runtime's to make
	})
}
