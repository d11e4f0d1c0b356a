// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Document is one object of a file, or what cannot be read as one.
type Document struct {
	// File as it was named; "-" for the standard input.
	File string
	// Number of the document in its file, from 1. The objects of a List have that of
	// the List.
	Number int
	// Object is nil where Problem is set.
	Object *unstructured.Unstructured
	// Problem says why it cannot be read.
	Problem string
}

// extensions are those of the files that are read in a directory.
var extensions = []string{".yaml", ".yml", ".json"}

// Read reads files, directories with their own files but not those of directories in
// them, and for "-" the standard input. It fails where something cannot be opened;
// what is there and malformed comes as a Document with a Problem.
func Read(names []string, input io.Reader) ([]Document, error) {
	var documents []Document
	for _, name := range names {
		files, err := filesOf(name)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			found, err := readFile(file, input)
			if err != nil {
				return nil, err
			}
			documents = append(documents, found...)
		}
	}
	return documents, nil
}

func filesOf(name string) ([]string, error) {
	if name == "-" {
		return []string{name}, nil
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("looking for manifests: %w", err)
	}
	if !info.IsDir() {
		return []string{name}, nil
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, fmt.Errorf("looking for manifests: %w", err)
	}
	var files []string
	for _, entry := range entries {
		if !entry.IsDir() && slices.Contains(extensions, filepath.Ext(entry.Name())) {
			files = append(files, filepath.Join(name, entry.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no file that ends in %s", name, strings.Join(extensions, ", "))
	}
	return files, nil
}

func readFile(name string, input io.Reader) ([]Document, error) {
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("reading manifests: %w", err)
		}
		defer file.Close()
		input = file
	}
	var documents []Document
	reader := utilyaml.NewYAMLReader(bufio.NewReader(input))
	for number := 1; ; number++ {
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
		documents = append(documents, parse(Document{File: name, Number: number}, text)...)
	}
}

// parse reads one document; none where it holds nothing but comments.
func parse(at Document, text []byte) []Document {
	data, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		at.Problem = strings.TrimPrefix(err.Error(), "yaml: ")
		return []Document{at}
	}
	if bytes.Equal(bytes.TrimSpace(data), []byte("null")) {
		return nil
	}
	var content map[string]any
	if err := utiljson.Unmarshal(data, &content); err != nil {
		at.Problem = "it is no object: a mapping with apiVersion, kind and metadata is expected"
		return []Document{at}
	}
	at.Object = &unstructured.Unstructured{Object: content}
	if !at.Object.IsList() {
		return []Document{at}
	}
	return itemsOf(at)
}

func itemsOf(at Document) (documents []Document) {
	items, _ := at.Object.Object["items"].([]any)
	for i, item := range items {
		one := Document{File: at.File, Number: at.Number}
		if content, ok := item.(map[string]any); ok {
			one.Object = &unstructured.Unstructured{Object: content}
		} else {
			one.Problem = fmt.Sprintf("items[%d] is no object", i)
		}
		documents = append(documents, one)
	}
	return documents
}
