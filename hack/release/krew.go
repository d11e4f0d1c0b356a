// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/krew/pkg/constants"
	"sigs.k8s.io/krew/pkg/index"
	"sigs.k8s.io/yaml"
)

const description = `Braid makes Multipath TCP use all NICs of the hosts of pods, under policies.
This plugin proposes paths of the nodes' NICs (init), tests them (test), says whether
everything is fine (status), why a pod is treated as it is (explain), what each NIC carries
(top, paths, ui), what a manifest would change (preview, validate) and what a node does with
a packet (trace).
`

const caveats = `The commands need Braid in the cluster: kubectl braid init says whether it would work there.
`

// writeManifest writes what krew installs the plugin by.
func (r *release) writeManifest(archives []archive) error {
	plugin := index.Plugin{
		TypeMeta:   metav1.TypeMeta{APIVersion: constants.CurrentAPIVersion, Kind: constants.PluginKind},
		ObjectMeta: metav1.ObjectMeta{Name: "braid"},
		Spec: index.PluginSpec{
			Version: "v" + r.version, ShortDescription: "See what Multipath TCP does in the cluster, and why",
			Description: description, Caveats: caveats, Homepage: "https://braid.dev",
		},
	}
	for _, one := range archives {
		plugin.Spec.Platforms = append(plugin.Spec.Platforms, index.Platform{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"os": one.system, "arch": one.architecture}},
			URI:      strings.TrimSuffix(r.url, "/") + "/" + one.name, Sha256: one.sum, Bin: one.program(),
			Files: []index.FileOperation{{From: "*", To: "."}},
		})
	}
	content, err := yaml.Marshal(plugin)
	if err != nil {
		return fmt.Errorf("writing krew's manifest: %w", err)
	}
	// A manifest that nobody created has no time of it.
	content = bytes.Replace(content, []byte("  creationTimestamp: null\n"), nil, 1)
	return os.WriteFile(filepath.Join(r.output, "braid.yaml"), content, 0o644)
}
