// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const crdKind = "CustomResourceDefinition"

func (s *Server) installCRDs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for _, dir := range s.options.CRDDirs {
		crds, err := readCRDs(dir)
		if err != nil {
			return err
		}
		if err := s.createCRDs(ctx, crds); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) createCRDs(ctx context.Context, crds []*apiextensionsv1.CustomResourceDefinition) error {
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		return err
	}
	c, err := client.New(s.config, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	for _, crd := range crds {
		if err := c.Create(ctx, crd); err != nil {
			return fmt.Errorf("creating %s %s: %w", crdKind, crd.Name, err)
		}
	}
	for _, crd := range crds {
		if err := s.waitServed(ctx, crd); err != nil {
			return err
		}
	}
	return nil
}

// waitServed waits until the server answers requests for the kind.
func (s *Server) waitServed(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) error {
	httpClient, err := rest.HTTPClientFor(s.config)
	if err != nil {
		return err
	}
	url := fmt.Sprintf("%s/apis/%s/%s/%s?limit=1",
		s.config.Host, crd.Spec.Group, crd.Spec.Versions[0].Name, crd.Spec.Names.Plural)
	for {
		if err = getOK(ctx, httpClient, url); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s %s is not served: %w", crdKind, crd.Name, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
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
