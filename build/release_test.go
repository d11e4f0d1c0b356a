// SPDX-License-Identifier: Apache-2.0

package build_test

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"debug/buildinfo"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// maxPlugin is how large the plugin may be, which people download.
const maxPlugin = 60 << 20

// host is the one platform that tests build for: all five take minutes.
var host = runtime.GOOS + "/" + runtime.GOARCH

func release(t *testing.T, arguments ...string) (directory string) {
	t.Helper()
	directory = t.TempDir()
	run(t, []string{"OUT=" + directory, "SOURCE_DATE_EPOCH=1700000000"}, "hack/release/build.sh", arguments...)
	return directory
}

func TestARelease(t *testing.T) {
	directory := release(t, host)
	plugin := "kubectl-braid_0.1.0_" + strings.Replace(host, "/", "_", 1)
	files := sums(t, directory)
	t.Run("has archive, bill, manifest, chart and sums", func(t *testing.T) {
		want := []string{"/SHA256SUMS", "/braid-0.1.0.tgz", "/braid.yaml", "/" + plugin + ".cdx.json", "/" + plugin + ".tar.gz"}
		if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		check := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
		check.Dir = directory
		if out, err := check.CombinedOutput(); err != nil || strings.Count(string(out), ": OK\n") != len(want)-1 {
			t.Errorf("the sums: %v\n%s", err, out)
		}
	})
	t.Run("is the same when it is made again", func(t *testing.T) {
		if again := sums(t, release(t, host)); !maps.Equal(files, again) {
			t.Errorf("got\n%v\nand then\n%v", files, again)
		}
	})
	t.Run("tells nothing of its maker", func(t *testing.T) { checkAnonymous(t, filepath.Join(directory, plugin+".tar.gz")) })
	unpacked := unpack(t, filepath.Join(directory, plugin+".tar.gz"))
	program := filepath.Join(unpacked, "kubectl-braid")
	t.Run("has a plugin that runs, and is no larger than 60 MiB", func(t *testing.T) {
		out, err := exec.Command(program, "--version").CombinedOutput()
		if want := "kubectl braid version 0.1.0\n"; err != nil || string(out) != want {
			t.Errorf("it said %q, %v, want %q", out, err, want)
		}
		if size := int64(len(read(t, program))); size > maxPlugin {
			t.Errorf("the plugin has %d bytes, more than %d: docs/developing.md says what it is made of", size, maxPlugin)
		}
	})
	t.Run("has a licence of each module", func(t *testing.T) { checkLicences(t, unpacked, program) })
	t.Run("has a bill with each module", func(t *testing.T) {
		var b bill
		decode(t, []byte(read(t, filepath.Join(directory, plugin+".cdx.json"))), &b)
		if modules := modulesOf(t, program); len(b.Components) != len(modules) || b.Metadata.Component.Name != "kubectl-braid" {
			t.Errorf("the bill of %s lists %d modules of %d", b.Metadata.Component.Name, len(b.Components), len(modules))
		}
		checkProgram(t, b.Metadata.Component, program)
	})
	t.Run("has a chart that renders as the directory does", func(t *testing.T) { checkChart(t, filepath.Join(directory, "braid-0.1.0.tgz")) })
	t.Run("can be installed by krew on each platform", func(t *testing.T) { checkKrew(t, program) })
}

func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// unpack unpacks as users do, by tar.
func unpack(t *testing.T, archive string) (directory string) {
	t.Helper()
	directory = t.TempDir()
	run(t, nil, "tar", "-xzf", archive, "-C", directory)
	return directory
}

func checkLicences(t *testing.T, unpacked, program string) {
	if own := read(t, filepath.Join(unpacked, "LICENSE")); own != read(t, "../LICENSE") {
		t.Error("Braid's own licence is another one")
	}
	others := read(t, filepath.Join(unpacked, "THIRD-PARTY-LICENSES"))
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"Go"}
	for _, module := range info.Deps {
		want = append(want, module.Path+" "+module.Version)
	}
	for _, owner := range want {
		if !strings.Contains(others, "\n"+owner+"\n") {
			t.Errorf("no licence of %s", owner)
		}
	}
	for _, text := range []string{"Leon Sorokin", "The Go Authors. All rights reserved.", "TERMS AND CONDITIONS FOR USE"} {
		if !strings.Contains(others, text) {
			t.Errorf("no licence says %q", text)
		}
	}
}

func checkChart(t *testing.T, packed string) {
	helm, err := exec.Command("../hack/helm/build.sh").Output()
	if err != nil {
		t.Fatalf("building helm: %v", err)
	}
	var rendered []string
	for _, chart := range []string{packed, "../charts/braid"} {
		out, err := exec.Command(strings.TrimSpace(string(helm)), "template", "braid", chart).Output()
		if err != nil {
			t.Fatalf("helm template %s: %v", chart, err)
		}
		rendered = append(rendered, string(out))
	}
	if rendered[0] != rendered[1] || len(rendered[0]) < 10_000 {
		t.Errorf("the package renders %d bytes, the directory %d", len(rendered[0]), len(rendered[1]))
	}
}

// checkKrew has another program stand for those of other platforms, and krew itself check
// what is said of all of them and install this machine's.
func checkKrew(t *testing.T, program string) {
	directory, krew := t.TempDir(), filepath.Join(t.TempDir(), "krew")
	run(t, nil, "go", "-C", "hack/release", "build", "-trimpath", "-o", krew, "sigs.k8s.io/krew/cmd/krew")
	arguments := []string{
		"-C", "hack/release", "run", ".", "--version", "1.2.3", "--url", "https://registry.example/v1.2.3/",
		"--source", absolute(t, ".."), "--output", directory,
	}
	for _, platform := range []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64"} {
		file := krew
		if platform == host {
			file = program
		}
		arguments = append(arguments, platform+"="+file)
	}
	run(t, []string{"SOURCE_DATE_EPOCH=1700000000"}, "go", arguments...)

	archive := filepath.Join(directory, "kubectl-braid_1.2.3_"+strings.Replace(host, "/", "_", 1)+".tar.gz")
	manifest := filepath.Join(directory, "braid.yaml")
	root := t.TempDir()
	install := func(archive string) (string, error) {
		command := exec.Command(krew, "install", "--manifest="+manifest, "--archive="+archive)
		command.Env = append(os.Environ(), "KREW_ROOT="+root)
		out, err := command.CombinedOutput()
		return string(out), err
	}
	if out, err := install(filepath.Join(directory, "kubectl-braid_1.2.3_darwin_arm64.tar.gz")); err == nil || !strings.Contains(out, "checksum does not match") {
		t.Errorf("krew took another platform's archive: %v\n%s", err, out)
	}
	if out, err := install(archive); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	checkKubectlFindsIt(t, filepath.Join(root, "bin"))

	said := read(t, manifest)
	if got := strings.Count(said, "  uri: https://registry.example/v1.2.3/kubectl-braid_1.2.3_"); got != 5 {
		t.Errorf("it says of %d archives where they are\n%s", got, said)
	}
	for name, sum := range sums(t, directory) {
		if !strings.HasSuffix(name, ".json") && !strings.HasSuffix(name, ".yaml") && !strings.Contains(said, "sha256: "+sum+"\n") {
			t.Errorf("it has no sum of %s\n%s", name, said)
		}
	}
	checkWindows(t, filepath.Join(directory, "kubectl-braid_1.2.3_windows_amd64.zip"), said)
}

func absolute(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// checkKubectlFindsIt has kubectl run the plugin that krew installed.
func checkKubectlFindsIt(t *testing.T, directory string) {
	binaries, err := exec.Command("../hack/kube/build.sh").Output()
	if err != nil {
		t.Fatalf("building kubectl: %v", err)
	}
	command := exec.Command(filepath.Join(strings.TrimSpace(string(binaries)), "kubectl"), "braid", "--version")
	command.Env = append(os.Environ(), "PATH="+directory+":"+os.Getenv("PATH"))
	if out, err := command.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "kubectl braid version") {
		t.Errorf("kubectl braid --version: %v\n%s", err, out)
	}
}

func checkWindows(t *testing.T, name, manifest string) {
	archive, err := zip.OpenReader(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = archive.Close() }()
	var names []string
	for _, file := range archive.File {
		names = append(names, file.Name)
	}
	if want := []string{"kubectl-braid.exe", "LICENSE", "THIRD-PARTY-LICENSES"}; !slices.Equal(names, want) {
		t.Errorf("the archive for Windows has %v, want %v", names, want)
	}
	if !strings.Contains(manifest, "bin: kubectl-braid.exe") {
		t.Errorf("the manifest does not name the program\n%s", manifest)
	}
}

// checkAnonymous looks for who made an archive, and when.
func checkAnonymous(t *testing.T, name string) {
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	compressed, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	if !compressed.ModTime.IsZero() || compressed.Name != "" {
		t.Errorf("gzip noted %v and %q", compressed.ModTime, compressed.Name)
	}
	modes := map[string]int64{"kubectl-braid": 0o755, "LICENSE": 0o644, "THIRD-PARTY-LICENSES": 0o644}
	for r := tar.NewReader(compressed); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 0 || header.Gid != 0 || header.Uname != "" || header.ModTime.Unix() != 1700000000 || header.Mode != modes[header.Name] {
			t.Errorf("%+v", header)
		}
	}
}
