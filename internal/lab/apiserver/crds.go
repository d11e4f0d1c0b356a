// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// installCRDs creates the CRDs of the directories, which may hold other objects too,
// and waits until the server serves them.
func (s *Server) installCRDs(ctx context.Context) (err error) {
	options := envtest.CRDInstallOptions{Paths: s.options.CRDDirs, ErrorIfPathMissing: true, MaxTime: startTimeout}
	if s.crds, err = envtest.InstallCRDs(s.config, options); err != nil {
		return err
	}
	if len(s.crds) == 0 && len(s.options.CRDDirs) > 0 {
		return fmt.Errorf("no CustomResourceDefinition in %v", s.options.CRDDirs)
	}
	return s.waitCRDs(ctx)
}

// waitCRDs waits until the server answers requests for every kind.
func (s *Server) waitCRDs(ctx context.Context) error {
	for _, crd := range s.crds {
		served := func(ctx context.Context) error { return s.serves(ctx, crd) }
		if err := s.apiserver.waitReady(ctx, served); err != nil {
			return fmt.Errorf("CustomResourceDefinition %s is not served: %w", crd.Name, err)
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
