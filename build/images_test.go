// SPDX-License-Identifier: Apache-2.0

// Package build_test makes images as a release does, and looks into them.
package build_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
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

// run runs a command in the repository.
func run(t *testing.T, environment []string, name string, arguments ...string) {
	t.Helper()
	command := exec.Command(name, arguments...)
	command.Dir = ".."
	command.Env = append(os.Environ(), environment...)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(arguments, " "), err, out)
	}
}

func buildImages(t *testing.T) (directory string) {
	t.Helper()
	directory = t.TempDir()
	run(t, []string{"OUT=" + directory}, "hack/image/build.sh", "1.2.3")
	return directory
}

// sums are those of all files in a directory, by their names.
func sums(t *testing.T, directory string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(directory, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		found[strings.TrimPrefix(path, directory)] = sum(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func sum(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func TestImagesAndTheirBillsOfMaterials(t *testing.T) {
	directory := buildImages(t)
	t.Run("are the same when they are built again", func(t *testing.T) {
		first, second := sums(t, directory), sums(t, buildImages(t))
		if len(first) != 8 || !maps.Equal(first, second) {
			t.Errorf("got\n%v\nand then\n%v", first, second)
		}
	})
	t.Run("come with the commit that they were made from", func(t *testing.T) { checkProvenance(t, directory) })
	for component, programs := range map[string][]string{
		"braid-agent": {"braid-agent", "braid-trace", "braid-proxy"}, "braid-controller": {"braid-controller"},
	} {
		t.Run(component+" is listed with its programs and all modules in them", func(t *testing.T) { checkBill(t, directory, component, programs) })
	}
}

func checkProvenance(t *testing.T, directory string) {
	file, archive := filepath.Join(t.TempDir(), "provenance.json"), filepath.Join(t.TempDir(), "archive.tar")
	run(t, nil, "go", "-C", "hack/image", "run", ".", "--name", "braid.dev/braid-agent:1.2.3", "--output", archive,
		"--provenance", file, "--commit", "0123abc-modified", runtime.GOARCH+"="+filepath.Join(directory, runtime.GOARCH, "braid-agent"))
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var images index
	decode(t, untar(t, archive)["index.json"], &images)
	for _, want := range []string{
		`"sha256": "` + strings.TrimPrefix(images.Manifests[0].Digest, "sha256:") + `"`, `"gitCommit": "0123abc"`, `"modified": true`,
		`"pkg:golang/std@` + strings.TrimPrefix(runtime.Version(), "go") + `"`, `"` + runtime.GOARCH + `/braid-agent"`,
	} {
		if !strings.Contains(string(content), want) {
			t.Errorf("%s is missing in\n%s", want, content)
		}
	}
}

// bill is what a test looks at of a CycloneDX document.
type bill struct {
	SpecVersion  string
	SerialNumber string
	Metadata     struct {
		Timestamp string
		Component component
	}
	Components   []component
	Dependencies []struct {
		Ref       string
		DependsOn []string
	}
}

type component struct {
	Ref                 string `json:"bom-ref"`
	Type, Name, Version string
	URL                 string `json:"purl"`
	Hashes              []struct{ Alg, Content string }
}

func checkBill(t *testing.T, directory, name string, programs []string) {
	content, err := os.ReadFile(filepath.Join(directory, name+"-"+runtime.GOARCH+".cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var b bill
	if err := json.Unmarshal(content, &b); err != nil {
		t.Fatal(err)
	}
	if b.SpecVersion != "1.6" || b.SerialNumber != "" || b.Metadata.Timestamp != "" {
		t.Errorf("version %s, serial number %q, time %q", b.SpecVersion, b.SerialNumber, b.Metadata.Timestamp)
	}
	if got := b.Metadata.Component; got.Name != "braid.dev/"+name || got.Version != "1.2.3" || !strings.HasPrefix(got.URL, "pkg:oci/"+name+"@sha256%3A") {
		t.Errorf("it is about %+v", got)
	}
	libraries, all := b.Components[len(programs):], map[string]bool{}
	listed := map[string]bool{}
	for _, c := range libraries {
		listed[c.URL] = c.Type == "library" && (len(c.Hashes) == 1 || c.Name == "std")
	}
	for i, name := range programs {
		program := filepath.Join(directory, runtime.GOARCH, name)
		checkProgram(t, b.Components[i], program)
		modules := modulesOf(t, program)
		for _, url := range modules {
			all[url] = true
			if !listed[url] {
				t.Errorf("%s of %s is missing, or has no sum", url, name)
			}
		}
		if depends := b.dependsOn(name); !slices.Equal(slices.Sorted(slices.Values(depends)), slices.Sorted(slices.Values(modules))) {
			t.Errorf("%s depends on %d of %d", name, len(depends), len(modules))
		}
	}
	if len(all) != len(libraries) {
		t.Errorf("%d modules are listed; the programs have %d", len(libraries), len(all))
	}
	if depends := b.dependsOn("image"); !slices.Equal(depends, programs) {
		t.Errorf("the image depends on %v, wanted %v", depends, programs)
	}
}

// modulesOf are the modules in a program, the standard library among them.
func modulesOf(t *testing.T, program string) []string {
	t.Helper()
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	urls := []string{"pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")}
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		urls = append(urls, "pkg:golang/"+dep.Path+"@"+dep.Version)
	}
	return urls
}

func (b *bill) dependsOn(reference string) []string {
	for _, dependency := range b.Dependencies {
		if dependency.Ref == reference {
			return dependency.DependsOn
		}
	}
	return nil
}

func checkProgram(t *testing.T, got component, program string) {
	t.Helper()
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if got.Type != "application" || len(got.Hashes) != 1 || got.Hashes[0].Content != sum(content) {
		t.Errorf("the program is %+v, its sum %s", got, sum(content))
	}
}

// index is an index of images, or the document of one image.
type index struct {
	Manifests []struct {
		Digest      string
		Platform    struct{ OS, Architecture string }
		Annotations map[string]string
	}
	Config struct{ Digest string }
	Layers []struct{ Digest string }
}

func TestOneArchiveHasTheImagesOfSeveralArchitectures(t *testing.T) {
	directory := t.TempDir()
	arguments := []string{"-C", "hack/image", "run", ".", "--name", "braid.dev/two:1", "--output"}
	programs := map[string]string{"amd64": "one program", "arm64": "another program"}
	for architecture, content := range programs {
		if err := os.WriteFile(filepath.Join(directory, architecture), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	pairs := []string{"amd64=" + filepath.Join(directory, "amd64"), "arm64=" + filepath.Join(directory, "arm64")}
	first, second := filepath.Join(directory, "1.tar"), filepath.Join(directory, "2.tar")
	run(t, nil, "go", append(append(arguments, first), pairs...)...)
	run(t, nil, "go", append(append(arguments, second), pairs...)...)
	files := untar(t, first)
	if !maps.EqualFunc(files, untar(t, second), bytes.Equal) {
		t.Error("the same programs make two different archives")
	}

	var top index
	decode(t, files["index.json"], &top)
	if len(top.Manifests) != 1 || top.Manifests[0].Annotations["io.containerd.image.name"] != "braid.dev/two:1" {
		t.Fatalf("the archive names %+v", top.Manifests)
	}
	var images index
	decode(t, files[blob(top.Manifests[0].Digest)], &images)
	var found []string
	for _, manifest := range images.Manifests {
		found = append(found, manifest.Platform.OS+"/"+manifest.Platform.Architecture)
		var image index
		decode(t, files[blob(manifest.Digest)], &image)
		var config struct{ OS, Architecture string }
		decode(t, files[blob(image.Config.Digest)], &config)
		if config.Architecture != manifest.Platform.Architecture || len(image.Layers) != 1 || files[blob(image.Layers[0].Digest)] == nil {
			t.Errorf("the image for %s is for %s and has the layers %v", manifest.Platform.Architecture, config.Architecture, image.Layers)
		}
	}
	if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(found, want) {
		t.Errorf("got images for %v, want %v", found, want)
	}
}

func blob(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }

func decode(t *testing.T, content []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(content, into); err != nil {
		t.Fatalf("%v in %s", err, content)
	}
}

// untar reads an archive of an OCI layout, and checks that each blob is what its name
// says.
func untar(t *testing.T, path string) map[string][]byte {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	files := map[string][]byte{}
	for r := tar.NewReader(file); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = content
		if name, ok := strings.CutPrefix(header.Name, "blobs/sha256/"); ok && header.Typeflag == tar.TypeReg && name != sum(content) {
			t.Errorf("%s has the sum %s", header.Name, sum(content))
		}
	}
}
