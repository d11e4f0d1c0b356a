// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// licenceFile is the name of a file that says what one may do, and what must be said.
var licenceFile = regexp.MustCompile(`(?i)^([\w-]+\.)?(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// goPackage is what go list says of a package that the program is made of.
type goPackage struct {
	ImportPath string
	Dir, Root  string
	Standard   bool
	EmbedFiles []string
	Module     *struct{ Path, Version, Dir string }
}

// licences are the texts of the licences of all that others wrote and that is in the
// plugin for a platform, each once, below the names of what it is the licence of.
func licences(source string, p platform) ([]byte, error) {
	packages, err := packagesOf(source, p)
	if err != nil {
		return nil, err
	}
	owners := map[string]map[string]bool{} // of each text
	licensed := map[string]bool{}
	for _, one := range packages {
		files, owner, err := licenceFiles(one)
		if err != nil {
			return nil, err
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			if owners[string(text)] == nil {
				owners[string(text)] = map[string]bool{}
			}
			owners[string(text)][owner] = true
			licensed[owner] = true
		}
	}
	for _, one := range packages {
		if owner := ownerOf(one); owner != "" && !licensed[owner] {
			return nil, fmt.Errorf("%s has no licence", owner)
		}
	}
	return document(owners), nil
}

// packagesOf lists what the compiler makes the plugin of.
func packagesOf(source string, p platform) (packages []goPackage, err error) {
	list := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,Root,Standard,EmbedFiles,Module", "./cmd/kubectl-braid")
	list.Dir = source
	list.Env = append(os.Environ(), "GOOS="+p.system, "GOARCH="+p.architecture, "CGO_ENABLED=0")
	var problems bytes.Buffer
	list.Stderr = &problems
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the plugin's packages: %w: %s", err, &problems)
	}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var one goPackage
		if err := decoder.Decode(&one); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading the plugin's packages: %w", err)
		}
		packages = append(packages, one)
	}
}

// ownerOf is whom a package is of; empty where it is Braid's.
func ownerOf(one goPackage) string {
	switch {
	case one.Standard:
		return "Go"
	case one.Module.Version == "":
		return ""
	default:
		return one.Module.Path + " " + one.Module.Version
	}
}

// licenceFiles are those of a package, of the directories above it, and of what it embeds.
func licenceFiles(one goPackage) (files []string, owner string, err error) {
	if owner = ownerOf(one); owner == "" {
		for _, name := range one.EmbedFiles {
			if licenceFile.MatchString(filepath.Base(name)) {
				files = append(files, filepath.Join(one.Dir, name))
			}
		}
		return files, one.ImportPath + ", what it embeds", nil
	}
	root := one.Root
	if !one.Standard {
		root = one.Module.Dir
	}
	for directory := one.Dir; ; directory = filepath.Dir(directory) {
		entries, err := os.ReadDir(directory)
		if err != nil {
			return nil, owner, err
		}
		for _, entry := range entries {
			if entry.Type().IsRegular() && licenceFile.MatchString(entry.Name()) {
				files = append(files, filepath.Join(directory, entry.Name()))
			}
		}
		if directory == root || directory == filepath.Dir(directory) {
			return files, owner, nil
		}
	}
}

// document puts the texts one after the other, by the first of their owners.
func document(owners map[string]map[string]bool) []byte {
	var out bytes.Buffer
	out.WriteString("kubectl-braid contains the following, under the licences below each.\n")
	heads := map[string]string{}
	for text, of := range owners {
		heads[strings.Join(slices.Sorted(maps.Keys(of)), "\n")+"\n\n"+strings.TrimSpace(text)+"\n"] = text
	}
	for _, section := range slices.Sorted(maps.Keys(heads)) {
		fmt.Fprintf(&out, "\n%s\n%s", strings.Repeat("=", 80), section)
	}
	return out.Bytes()
}
