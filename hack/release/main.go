// SPDX-License-Identifier: Apache-2.0

// Command release makes of the plugin's programs what a release page offers: an archive
// for each platform, with the licences of all that is in it, a bill of materials for each,
// and the manifest by which krew finds and checks them. Equal programs make equal files.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"braid.dev/braid/hack/image/bill"
)

func main() {
	var r release
	flag.StringVar(&r.version, "version", "", "version of the release, such as 0.1.0")
	flag.StringVar(&r.url, "url", "", "directory that the archives can be downloaded from")
	flag.StringVar(&r.source, "source", ".", "checkout that the programs were built from")
	flag.StringVar(&r.output, "output", "", "directory to write to")
	flag.Parse()
	if err := r.make(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

type release struct {
	version, url, source, output string
}

// make makes the files of a release for programs, each given as OS/ARCH=PROGRAM.
func (r *release) make(programs []string) error {
	at, err := fileTime()
	if err != nil {
		return err
	}
	var archives []archive
	for _, pair := range programs {
		name, program, ok := strings.Cut(pair, "=")
		system, architecture, whole := strings.Cut(name, "/")
		if !ok || !whole {
			return fmt.Errorf("reading %q: must be OS/ARCH=PROGRAM", pair)
		}
		made, err := r.archive(platform{system: system, architecture: architecture}, program, at)
		if err != nil {
			return fmt.Errorf("making the archive for %s: %w", name, err)
		}
		archives = append(archives, made)
	}
	return r.writeManifest(archives)
}

// fileTime is the time that files get: SOURCE_DATE_EPOCH, as reproducible-builds.org has it.
func fileTime() (time.Time, error) {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("reading SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// platform is an operating system and an architecture, as Go and krew name them.
type platform struct{ system, architecture string }

func (p platform) program() string {
	if p.system == "windows" {
		return "kubectl-braid.exe"
	}
	return "kubectl-braid"
}

// archive is one that was written.
type archive struct {
	platform
	name, sum string
}

// archive writes the archive and the bill of one platform's program.
func (r *release) archive(p platform, program string, at time.Time) (archive, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return archive{}, err
	}
	own, err := os.ReadFile(filepath.Join(r.source, "LICENSE"))
	if err != nil {
		return archive{}, err
	}
	others, err := licences(r.source, p)
	if err != nil {
		return archive{}, err
	}
	base := fmt.Sprintf("kubectl-braid_%s_%s_%s", r.version, p.system, p.architecture)
	made, err := bill.OfProgram(program, r.version)
	if err != nil {
		return archive{}, err
	}
	if err := bill.Write(filepath.Join(r.output, base+".cdx.json"), made); err != nil {
		return archive{}, err
	}
	files := []file{{p.program(), 0o755, content}, {"LICENSE", 0o644, own}, {"THIRD-PARTY-LICENSES", 0o644, others}}
	pack, suffix := packTar, ".tar.gz"
	if p.system == "windows" {
		pack, suffix = packZip, ".zip"
	}
	sum, err := write(filepath.Join(r.output, base+suffix), files, at, pack)
	return archive{platform: p, name: base + suffix, sum: sum}, err
}
