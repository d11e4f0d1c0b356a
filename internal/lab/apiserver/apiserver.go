// SPDX-License-Identifier: Apache-2.0

// Package apiserver runs a real kube-apiserver with its etcd for tests and for
// the lab. There is no controller manager and no scheduler: namespaces, nodes,
// pods and custom resources can be written, nothing else acts on them.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// KubernetesVersion is the version of the binaries, which hack/kube builds.
const KubernetesVersion = "v1.36.3"

// startTimeout limits how long one of the two processes may take to be ready.
const startTimeout = 3 * time.Minute

// Options say how to run the server. The zero value serves a test.
type Options struct {
	// Dir holds data, certificates, logs and the kubeconfig. It must not be in
	// use by a running server; what an ended one left there is removed. Empty
	// means a temporary directory, which Stop removes.
	Dir string
	// BinDir holds kube-apiserver and etcd. Empty means DefaultBinDir.
	BinDir string
	// CRDDirs are directories of CustomResourceDefinitions to install.
	CRDDirs []string
	// Address is the IP address to serve on. Empty means 127.0.0.1.
	Address string
	// Advertise is the address at which pods reach the server by the Service
	// "kubernetes". Empty means that there are no pods, and no controller that makes
	// service accounts.
	Advertise string
	// Tunnel is a Unix socket at which an HTTP proxy passes on what the server has to
	// say to kubelets and pods. Empty means that it speaks to them directly.
	Tunnel string
	// Audited are the users whose requests are written to AuditPath. Empty means none.
	Audited []string
	// Detach lets both processes outlive this one; StopDir ends them. Without it
	// they die with this process, however it ends. It needs Dir.
	Detach bool
}

// Server is a running etcd and, but for the time between StopServer and
// StartServer, a running kube-apiserver.
type Server struct {
	options   Options
	temporary bool
	owner     *os.File
	config    *rest.Config
	crds      []*apiextensionsv1.CustomResourceDefinition
	ports     ports
	etcd      *process
	apiserver *process
}

// Start starts both processes, waits until the server is ready and installs the
// CRDs. The context limits the start alone.
func Start(ctx context.Context, options Options) (*Server, error) {
	s := &Server{options: options}
	err := s.start(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting a Kubernetes API server: %w", err), s.Stop())
	}
	return s, nil
}

func (s *Server) start(ctx context.Context) error {
	if err := s.complete(); err != nil {
		return err
	}
	if err := s.prepareDir(); err != nil {
		return err
	}
	if err := s.writeEgress(); err != nil {
		return err
	}
	if err := s.writeAuditPolicy(); err != nil {
		return err
	}
	if err := s.startBoth(ctx); err != nil {
		return err
	}
	kubeconfig, err := s.KubeconfigBytes()
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.KubeconfigPath(), kubeconfig, 0o600); err != nil {
		return fmt.Errorf("writing the kubeconfig: %w", err)
	}
	return s.installCRDs(ctx)
}

// complete fills in what the options leave open.
func (s *Server) complete() error {
	o := &s.options
	if o.Address == "" {
		o.Address = "127.0.0.1"
	}
	if o.BinDir == "" {
		dir, err := DefaultBinDir()
		if err != nil {
			return err
		}
		o.BinDir = dir
	}
	if o.Dir == "" && o.Detach {
		return errors.New("a detached server needs a directory: set Options.Dir")
	}
	return checkBinaries(o.BinDir)
}

// startBoth tries again with other ports when one of them was taken between
// choosing and using it.
func (s *Server) startBoth(ctx context.Context) error {
	const attempts = 3
	var err error
	for range attempts {
		if err = s.tryBoth(ctx); err == nil || !errors.Is(err, errEndedEarly) {
			return err
		}
		if stopErr := s.endProcesses(); stopErr != nil {
			return errors.Join(err, stopErr)
		}
	}
	return err
}

func (s *Server) tryBoth(ctx context.Context) error {
	var err error
	if s.ports, err = choosePorts(s.options.Address); err != nil {
		return err
	}
	if s.config, err = writeCredentials(s.options, s.ports.server); err != nil {
		return err
	}
	if err := s.startEtcd(ctx); err != nil {
		return err
	}
	return s.StartServer(ctx)
}

func (s *Server) startEtcd(ctx context.Context) error {
	data := s.path(dataDir)
	if err := os.RemoveAll(data); err != nil {
		return fmt.Errorf("removing old data of etcd: %w", err)
	}
	etcd, err := s.launch("etcd", etcdArguments(data, s.ports))
	if err != nil {
		return err
	}
	s.etcd = etcd
	return etcd.waitReady(ctx, etcdHealthy(s.ports.etcd))
}

// StartServer starts the kube-apiserver again after StopServer, with the same
// data, address and credentials, and waits until it is ready.
func (s *Server) StartServer(ctx context.Context) error {
	apiserver, err := s.launch("kube-apiserver", serverArguments(s.options, s.ports))
	if err != nil {
		return err
	}
	s.apiserver = apiserver
	if err := apiserver.waitReady(ctx, s.ready); err != nil {
		return err
	}
	return s.waitCRDs(ctx)
}

// ready reports whether the server has started, with its own roles and the
// first namespaces.
func (s *Server) ready(ctx context.Context) error {
	httpClient, err := rest.HTTPClientFor(s.config)
	if err != nil {
		return err
	}
	if err := getOK(ctx, httpClient, s.config.Host+"/readyz"); err != nil {
		return err
	}
	c, err := client.New(s.config, client.Options{HTTPClient: httpClient})
	if err != nil {
		return err
	}
	return c.Get(ctx, client.ObjectKey{Name: corev1.NamespaceDefault}, &corev1.Namespace{})
}

// StopServer ends the kube-apiserver at once, as a crash would. Etcd stays.
func (s *Server) StopServer() error {
	if s.apiserver == nil {
		return nil
	}
	err := s.apiserver.kill()
	s.apiserver = nil
	return err
}

// Stop ends both processes and removes the directory if it was a temporary one.
// It may be called more than once.
func (s *Server) Stop() error {
	err := s.endProcesses()
	if s.temporary {
		err = errors.Join(err, os.RemoveAll(s.options.Dir))
	}
	if s.owner != nil {
		err = errors.Join(err, s.owner.Close())
		s.owner = nil
	}
	return err
}

func (s *Server) endProcesses() error {
	err := s.StopServer()
	if s.etcd != nil {
		err = errors.Join(err, s.etcd.kill())
		s.etcd = nil
	}
	return err
}

func (s *Server) launch(name string, arguments []string) (*process, error) {
	return launch(filepath.Join(s.options.BinDir, name), arguments, s.options.Dir, s.options.Detach)
}

func (s *Server) path(name string) string { return filepath.Join(s.options.Dir, name) }
