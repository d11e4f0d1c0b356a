// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"braid.dev/braid/build/pages"
)

// What docs/tutorial.md tells to type is typed, but for what makes the cluster, and installs
// and removes Braid, which setUp and other tests do.
func TestTheTutorialLeadsWhereItSays(t *testing.T) {
	feature := features.New("tutorial").
		Setup(removeWorkload).
		Assess("its commands succeed, and show what they should", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			said := followTutorial(ctx, t)
			t.Log(said)
			told := tutorialSections(said)
			expectFaster(t, told["5"])
			for section, want := range map[string]string{
				"4": `Everything is fine`, "6": `(?s)path-` + interfaceOf(0) + `.*path-` + interfaceOf(1) + `|path-` + interfaceOf(2),
				"7": `(?s), not path-` + interfaceOf(1) + `.*path path-` + interfaceOf(1) + `: InterfaceDown`,
				"8": `(?m)(^default/web +\S+ +path-` + interfaceOf(0) + `(, not \S+)? .*\n){3}`,
			} {
				if !regexp.MustCompile(want).MatchString(told[section]) {
					t.Errorf("section %s does not show %s:\n%s", section, want, told[section])
				}
			}
			return ctx
		}).
		Teardown(func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			expectRemovable(ctx, t)
			return ctx
		}).Feature()
	testenv.Test(t, feature)
}

// followTutorial runs the commands of the sections in one shell.
func followTutorial(ctx context.Context, t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(repository, "docs/tutorial.md"))
	if err != nil {
		t.Fatal(err)
	}
	var nics []string
	for i := range paths {
		nics = append(nics, interfaceOf(i))
	}
	script := fmt.Sprintf("set -euo pipefail\nexport IMAGE=%s NICS=%q PATH=%s:%s:$PATH\n", workloadImage, strings.Join(nics, " "), filepath.Dir(kubectlBin), filepath.Dir(pluginBin))
	for _, section := range strings.Split(string(page), "\n## ")[3:] {
		script += "echo == " + section[:1] + "\n" + strings.Join(typed.FindAllString(section, -1), "\n") + "\n"
	}
	expectTyped(t, string(page), script)
	script = strings.NewReplacer(
		"```sh", "", "```", "",
		"kubectl braid status\nnsenter --net=/run/netns/cluster-$B", "! kubectl braid status\n"+cluster.shell("$B"), // a NIC is down
		"nsenter --net=/run/netns/cluster-$B", cluster.shell("$B"), "ip link set green", "ip link set "+interfaceOf(1), "path-blue", "path-"+interfaceOf(0),
		"helm uninstall", ": helm uninstall", "kubectl delete crd", ": kubectl delete crd", "kubectl delete namespace", ": kubectl delete namespace",
	).Replace(script)
	command := exec.CommandContext(ctx, "bash", "-c", script)
	command.Dir = repository
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s\nthe commands were:\n%s", err, out, script)
	}
	return string(out)
}

// removes are the commands that the script leaves out.
var removes = regexp.MustCompile(`^(helm uninstall|kubectl delete (crd|namespace)) `)

// expectTyped wants each command in the script of which no mark says why it is not run.
func expectTyped(t *testing.T, page, script string) {
	t.Helper()
	for _, b := range pages.Blocks("docs/tutorial.md", page) {
		if !b.HasCommands() {
			continue
		}
		commands, err := b.Commands()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range commands {
			if c.NotRun == "" && (!strings.Contains(script, c.Text) || removes.MatchString(c.Text)) {
				t.Errorf("%s: %s is not run, and no mark says why", b, c.Text)
			}
		}
	}
}

// typed is a block of commands.
var typed = regexp.MustCompile("(?ms)^```sh\n.*?^```$")

// tutorialSections are what was printed, by the sections' numbers.
func tutorialSections(said string) map[string]string {
	sections := map[string]string{}
	for _, one := range strings.Split(said, "== ")[1:] {
		number, text, _ := strings.Cut(one, "\n")
		sections[number] = text
	}
	return sections
}

// expectFaster wants the second download to be much faster than the first.
func expectFaster(t *testing.T, said string) {
	t.Helper()
	speeds := regexp.MustCompile(`(\d+) bytes/s`).FindAllStringSubmatch(said, -1)
	if len(speeds) != 2 {
		t.Fatalf("there are no two downloads:\n%s", said)
	}
	plain, _ := strconv.ParseFloat(speeds[0][1], 64)
	spread, _ := strconv.ParseFloat(speeds[1][1], 64)
	if spread < 1.7*plain {
		t.Errorf("the download took %.0f bytes/s by TCP and %.0f by MPTCP", plain, spread)
	}
}
