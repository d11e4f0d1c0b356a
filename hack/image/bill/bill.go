// SPDX-License-Identifier: Apache-2.0

// Package bill says what programs are made of, as CycloneDX: the programs, and the
// modules that the Go compiler put into them. There is no time and no random number in
// it, so that what is equal has equal bills.
package bill

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
)

// Write writes a bill to a file.
func Write(path string, bill *cyclonedx.BOM) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	encoder := cyclonedx.NewBOMEncoder(file, cyclonedx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false)
	if err := encoder.EncodeVersion(bill, cyclonedx.SpecVersion1_6); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return file.Close()
}

// OfProgram is the bill of a program that comes alone.
func OfProgram(program, version string) (*cyclonedx.BOM, error) {
	application, modules, err := programComponents(program, version)
	if err != nil {
		return nil, err
	}
	bill := cyclonedx.NewBOM()
	bill.Metadata = &cyclonedx.Metadata{Component: &application}
	bill.Components = new(once(modules))
	bill.Dependencies = new([]cyclonedx.Dependency{{Ref: application.BOMRef, Dependencies: new(referencesOf(modules))}})
	return bill, nil
}

// OfImage is the bill of an image of programs.
func OfImage(image cyclonedx.Component, programs []string) (*cyclonedx.BOM, error) {
	var applications, libraries []cyclonedx.Component
	var references []string
	var dependencies []cyclonedx.Dependency
	for _, program := range programs {
		application, modules, err := programComponents(program, image.Version)
		if err != nil {
			return nil, err
		}
		applications = append(applications, application)
		libraries = append(libraries, modules...)
		references = append(references, application.BOMRef)
		dependencies = append(dependencies, cyclonedx.Dependency{Ref: application.BOMRef, Dependencies: new(referencesOf(modules))})
	}
	bill := cyclonedx.NewBOM()
	bill.Metadata = &cyclonedx.Metadata{Component: &image}
	bill.Components = new(append(applications, once(libraries)...))
	bill.Dependencies = new(append([]cyclonedx.Dependency{{Ref: image.BOMRef, Dependencies: &references}}, dependencies...))
	return bill, nil
}

// programComponents are a program and the modules in it.
func programComponents(program, version string) (application cyclonedx.Component, modules []cyclonedx.Component, err error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return application, nil, fmt.Errorf("reading what %s was built from: %w", program, err)
	}
	for _, module := range append([]*debug.Module{standardLibrary(info)}, info.Deps...) {
		component, err := moduleComponent(module)
		if err != nil {
			return application, nil, err
		}
		modules = append(modules, component)
	}
	application, err = programComponent(program, info, version)
	return application, modules, err
}

func referencesOf(components []cyclonedx.Component) (references []string) {
	for _, component := range components {
		references = append(references, component.BOMRef)
	}
	return references
}

// once leaves out what programs have in common.
func once(components []cyclonedx.Component) []cyclonedx.Component {
	slices.SortStableFunc(components, func(a, b cyclonedx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	return slices.CompactFunc(components, func(a, b cyclonedx.Component) bool { return a.BOMRef == b.BOMRef })
}

// told are the settings of the compiler that say what a program was built for.
var told = []string{"CGO_ENABLED", "GOARCH", "GOOS"}

func programComponent(program string, info *buildinfo.BuildInfo, version string) (cyclonedx.Component, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return cyclonedx.Component{}, err
	}
	sum := sha256.Sum256(content)
	var properties []cyclonedx.Property
	for _, setting := range info.Settings {
		if slices.Contains(told, setting.Key) {
			properties = append(properties, cyclonedx.Property{Name: "braid:build:" + setting.Key, Value: setting.Value})
		}
	}
	return cyclonedx.Component{
		BOMRef: filepath.Base(program), Type: cyclonedx.ComponentTypeApplication, Name: filepath.Base(program), Version: version,
		PackageURL: "pkg:golang/" + info.Path + "@" + version,
		Hashes:     &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
		Properties: &properties,
	}, nil
}

func standardLibrary(info *buildinfo.BuildInfo) *debug.Module {
	return &debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}
}

func moduleComponent(module *debug.Module) (cyclonedx.Component, error) {
	if module.Replace != nil {
		module = module.Replace
	}
	reference := "pkg:golang/" + module.Path + "@" + module.Version
	component := cyclonedx.Component{
		BOMRef: reference, Type: cyclonedx.ComponentTypeLibrary, Name: module.Path, Version: module.Version, PackageURL: reference,
	}
	if module.Sum == "" {
		return component, nil // the standard library, or a directory
	}
	sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(module.Sum, "h1:"))
	if err != nil {
		return cyclonedx.Component{}, fmt.Errorf("reading the sum of %s: %w", module.Path, err)
	}
	component.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
	return component, nil
}
