// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// statement says where an image comes from, in the words of SLSA's provenance 1.0
// within an in-toto statement 1: what `cosign attest --type slsaprovenance1` signs.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     struct {
		BuildDefinition definition `json:"buildDefinition"`
		RunDetails      struct {
			Builder struct {
				ID string `json:"id"`
			} `json:"builder"`
		} `json:"runDetails"`
	} `json:"predicate"`
}

type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

type definition struct {
	BuildType          string     `json:"buildType"`
	ExternalParameters parameters `json:"externalParameters"`
	Resolved           []resource `json:"resolvedDependencies"`
}

type parameters struct {
	Version  string   `json:"version"`
	Programs []string `json:"programs"`
	// Modified: the sources were not those of the commit.
	Modified bool `json:"modified,omitempty"`
}

// writeProvenance says that the image was made of the programs, from a commit;
// "-modified" after it tells of sources with changes.
func writeProvenance(file, commit string, tag name.Tag, programs []string, image v1.ImageIndex) error {
	digest, err := image.Digest()
	if err != nil {
		return fmt.Errorf("computing the images' digest: %w", err)
	}
	first := list(programs[0][strings.IndexByte(programs[0], '=')+1:])[0]
	info, err := buildinfo.ReadFile(first)
	if err != nil {
		return fmt.Errorf("reading what %s was built from: %w", first, err)
	}
	commit, modified := strings.CutSuffix(commit, "-modified")
	said := statement{
		Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1",
		Subject: []resource{{Name: tag.Repository.Name(), Digest: map[string]string{digest.Algorithm: digest.Hex}}},
	}
	said.Predicate.RunDetails.Builder.ID = "https://braid.dev/make-images"
	said.Predicate.BuildDefinition = definition{
		BuildType:          "https://braid.dev/make-images/v1",
		ExternalParameters: parameters{Version: tag.TagStr(), Programs: namesOf(programs), Modified: modified},
		Resolved: []resource{
			{URI: "git+https://" + info.Main.Path, Digest: map[string]string{"gitCommit": commit}},
			{URI: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")},
		},
	}
	content, err := json.MarshalIndent(said, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(content, '\n'), 0o644)
}

// namesOf leaves the directories of ARCH=PROGRAM[,PROGRAM...] out.
func namesOf(programs []string) (names []string) {
	for _, pair := range programs {
		architecture, files, _ := strings.Cut(pair, "=")
		for _, file := range list(files) {
			names = append(names, architecture+"/"+path.Base(file))
		}
	}
	return names
}
