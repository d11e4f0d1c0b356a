// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// result is what _out/demo.json holds. Rates are goodput in Mbit/s, but for those
// of the paths, which are what the NICs of the sender's node sent.
type result struct {
	Links            int                `json:"links"`
	LinkMbit         int                `json:"linkMbit"`
	SinglePathMbit   float64            `json:"singlePathMbit"`
	SpreadMbit       float64            `json:"spreadMbit"`
	Ratio            float64            `json:"ratio"`
	PerPathMbit      map[string]float64 `json:"perPathMbit"`
	BackToSingleMbit float64            `json:"backToSingleMbit"`
	Kernel           string             `json:"kernel"`
	MachineKernel    string             `json:"machineKernel,omitempty"`
	Kubernetes       string             `json:"kubernetes"`
}

// describe fills in where it was measured.
func (r *result) describe(config *rest.Config, kind kind) error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("asking for the kernel's release: %w", err)
	}
	server, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client of the API server: %w", err)
	}
	version, err := server.ServerVersion()
	if err != nil {
		return fmt.Errorf("asking for the API server's version: %w", err)
	}
	r.Links, r.LinkMbit = len(paths), kind.linkMbit
	r.Kernel, r.Kubernetes = unix.ByteSliceToString(name.Release[:]), version.GitVersion
	return nil
}

func (r *result) write(file string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the result: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("making the directory of the result: %w", err)
	}
	if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return nil
}

func round(value float64, digits int) float64 {
	factor := math.Pow10(digits)
	return math.Round(value*factor) / factor
}
