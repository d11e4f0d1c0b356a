// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const crdKind = "CustomResourceDefinition"

// installCRDs creates the CRDs and waits until the server serves them.
func (s *Server) installCRDs(ctx context.Context) error {
	for _, dir := range s.options.CRDDirs {
		crds, err := readCRDs(dir)
		if err != nil {
			return err
		}
		s.crds = append(s.crds, crds...)
	}
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		return err
	}
	c, err := client.New(s.config, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	for _, crd := range s.crds {
		if err := c.Create(ctx, crd.DeepCopy()); err != nil {
			return fmt.Errorf("creating %s %s: %w", crdKind, crd.Name, err)
		}
	}
	return s.waitCRDs(ctx)
}

// waitCRDs waits until the server answers requests for every kind.
func (s *Server) waitCRDs(ctx context.Context) error {
	for _, crd := range s.crds {
		served := func(ctx context.Context) error { return s.serves(ctx, crd) }
		if err := s.apiserver.waitReady(ctx, served); err != nil {
			return fmt.Errorf("%s %s is not served: %w", crdKind, crd.Name, err)
		}
	}
	return nil
}

// serves asks as a new client would: first whether there is such a kind, and
// then for its objects. Discovery and the objects come a moment apart.
func (s *Server) serves(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) error {
	version := crd.Spec.Versions[0].Name
	c, err := client.New(s.config, client.Options{})
	if err != nil {
		return err
	}
	kind := schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}
	if _, err := c.RESTMapper().RESTMapping(kind, version); err != nil {
		return err
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: kind.Group, Version: version, Kind: crd.Spec.Names.ListKind})
	return c.List(ctx, list, client.Limit(1))
}

// readCRDs reads every CRD in the YAML files of a directory; it skips other
// objects, such as the kustomization.
func readCRDs(dir string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, file := range files {
		some, err := readCRDFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", file, err)
		}
		crds = append(crds, some...)
	}
	if len(crds) == 0 {
		return nil, fmt.Errorf("no %s in %s", crdKind, dir)
	}
	return crds, nil
}

func readCRDFile(name string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	decoder := yaml.NewYAMLOrJSONDecoder(file, 4096)
	var crds []*apiextensionsv1.CustomResourceDefinition
	for {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := decoder.Decode(crd); errors.Is(err, io.EOF) {
			return crds, nil
		} else if err != nil {
			return nil, err
		}
		if crd.Kind == crdKind {
			crds = append(crds, crd)
		}
	}
}
