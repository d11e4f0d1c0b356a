// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"braid.dev/braid/hack/image/bill"
)

// writeSBOM says what an image of programs is made of.
func writeSBOM(path string, programs []string, tag name.Tag, image v1.Image) error {
	container, err := containerComponent(tag, image)
	if err != nil {
		return err
	}
	made, err := bill.OfImage(container, programs)
	if err != nil {
		return err
	}
	return bill.Write(path, made)
}

func containerComponent(tag name.Tag, image v1.Image) (cyclonedx.Component, error) {
	digest, err := image.Digest()
	if err != nil {
		return cyclonedx.Component{}, fmt.Errorf("computing the image's digest: %w", err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return cyclonedx.Component{}, fmt.Errorf("reading the image's configuration: %w", err)
	}
	repository := tag.Repository.Name()
	query := url.Values{"arch": {config.Architecture}, "repository_url": {repository}, "tag": {tag.TagStr()}}
	return cyclonedx.Component{
		BOMRef: "image", Type: cyclonedx.ComponentTypeContainer, Name: repository, Version: tag.TagStr(),
		PackageURL: "pkg:oci/" + repository[strings.LastIndexByte(repository, '/')+1:] + "@" + url.QueryEscape(digest.String()) + "?" + query.Encode(),
	}, nil
}
