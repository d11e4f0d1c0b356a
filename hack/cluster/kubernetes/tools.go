// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools names what a cluster needs beside its API server, so that go.mod
// holds it.
package tools

import (
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
