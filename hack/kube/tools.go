// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package kube pins the Kubernetes binaries that the lab and the tests run.
package kube

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kubectl"
)
