// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"braid.dev/braid/bpf"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/testutil"
)

// inventory counts what could leak.
type inventory map[string]int

// inventory counts the descriptors of lasting processes by their kind, the network namespaces
// that nodes know, and what is on nodes and in pods: a program or map that nothing of
// these holds is gone.
func (s *soak) inventory(t *testing.T) inventory {
	t.Helper()
	found, err := s.count()
	if err != nil {
		t.Fatal(err)
	}
	return found
}

var numbers = regexp.MustCompile(`[0-9]+`)

func (s *soak) count() (inventory, error) {
	found := inventory{}
	footprint, failed := s.Footprint()
	for _, line := range footprint {
		// Programs are loaded anew, and interfaces have new numbers.
		if strings.Contains(line, " program ") {
			line = numbers.ReplaceAllString(line, "N")
		}
		found[line]++
	}
	failed = errors.Join(failed, found.addNamespaces(s))
	for _, process := range s.lasting() {
		failed = errors.Join(failed, found.addDescriptors(process))
	}
	return found, failed
}

// addNamespaces counts those that a node knows by a number: each that shares a pair of
// interfaces with it, until the kernel has taken it down.
func (i inventory) addNamespaces(s *soak) error {
	for _, node := range s.Network.Nodes {
		out, err := node.Run("ip", "netns", "list-id")
		if err != nil {
			return err
		}
		i["network namespaces around "+node.NodeName()] = strings.Count(out, "nsid ")
	}
	return nil
}

func (i inventory) addDescriptors(of *lab.Process) error {
	directory := fmt.Sprint("/proc/", of.Pid(), "/fd")
	entries, err := os.ReadDir(directory)
	if err != nil {
		return fmt.Errorf("listing the descriptors of %s: %w", of.Name, err)
	}
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(directory, entry.Name()))
		if err == nil { // it may be closed by now
			i["descriptors of "+of.Name+": "+numbers.ReplaceAllString(target, "N")+mapName(of.Pid(), entry.Name())]++
		}
	}
	return nil
}

var mapID = regexp.MustCompile(`map_id:\s*([0-9]+)`)

// mapName is the name of the map that a descriptor refers to, if it does.
func mapName(pid int, descriptor string) string {
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, descriptor))
	found := mapID.FindSubmatch(info)
	if err != nil || found == nil {
		return ""
	}
	id, err := strconv.ParseUint(string(found[1]), 10, 32)
	if err != nil {
		return ""
	}
	m, err := ebpf.NewMapFromID(ebpf.MapID(id))
	if err != nil {
		return ""
	}
	defer m.Close()
	if about, err := m.Info(); err == nil {
		return " " + about.Name
	}
	return ""
}

// socketsMore is by how many a process may have more: those to the API server come and go.
const socketsMore = 2

// more lists what there is more of than before.
func (i inventory) more(before inventory) (lines []string) {
	for _, what := range slices.Sorted(maps.Keys(i)) {
		allowed := before[what]
		if strings.HasPrefix(what, "descriptors") && strings.Contains(what, "socket:") {
			allowed += socketsMore
		}
		if i[what] > allowed {
			lines = append(lines, fmt.Sprintf("%s: %d, and was %d", what, i[what], before[what]))
		}
	}
	return lines
}

// expectNothingLeft waits until everything is as it was before.
func (s *soak) expectNothingLeft(t *testing.T, before inventory) {
	t.Helper()
	took, err := testutil.Until(patience, func() error {
		now, err := s.count()
		if lines := now.more(before); len(lines) > 0 {
			err = errors.Join(err, fmt.Errorf("there is more than before:\n%s", strings.Join(lines, "\n")))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	t.Logf("everything else is as before after %v", took)
	s.expectFewFlowsLeft(t)
}

// expectFewFlowsLeft waits until flows have ended but for the victim's, and for those to
// pods of other nodes that died without a word: where a connection to them is given up
// without a word too, their flows are known until they are old.
func (s *soak) expectFewFlowsLeft(t *testing.T) {
	t.Helper()
	silent := 0
	took, err := testutil.Until(patience, func() error {
		all := s.flowsLeft(t)
		living := slices.DeleteFunc(slices.Clone(all), func(flow flow) bool { return s.dead[flow.remote.Addr()] })
		silent = len(all) - len(living)
		if len(living) > 0 {
			return fmt.Errorf("%d flows live that have no connection, such as %v", len(living), living[0])
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	t.Logf("flows are the victim's, and %d to dead pods, after %v", silent, took)
	testutil.Figure(t, "soak.flows_left", "flows", float64(silent))
	if most := len(s.dead) * talks * len(s.Paths); silent > most {
		t.Errorf("there are more of them than connections had subflows, %d", most)
	}
}

type flow struct {
	node          string
	local, remote netip.AddrPort
}

// flowsLeft are the flows that have not ended, but for the victim's.
func (s *soak) flowsLeft(t *testing.T) (left []flow) {
	t.Helper()
	for _, node := range s.Network.Nodes {
		for key := range s.Flows(t, node) {
			f := flow{node.NodeName(), bpf.AddrPort(key.Local.Word, key.LocalPort), bpf.AddrPort(key.Remote.Word, key.RemotePort)}
			if fmt.Sprint(f.local.Port()) != testlab.StreamPort && fmt.Sprint(f.remote.Port()) != testlab.StreamPort {
				left = append(left, f)
			}
		}
	}
	return left
}

// lasting are the processes that are not started again: what others leaked is gone with
// them, but for what they left in the kernel.
func (s *soak) lasting() []*lab.Process { return []*lab.Process{s.Agents["node2"], s.Controller} }

// residentMemory is that of the lasting processes, in KiB.
func (s *soak) residentMemory(t *testing.T) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	for _, process := range s.lasting() {
		all[process.Name] = statusKiB(t, process, "VmRSS:")
	}
	return all
}

// statusKiB reads a figure of /proc/PID/status.
func statusKiB(t *testing.T, process *lab.Process, field string) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprint("/proc/", process.Pid(), "/status"))
	if err != nil {
		t.Fatal(err)
	}
	return number(t, string(text), field)
}

// charged is what a container of the agent would be charged for at most, in MiB: the most
// that was resident, and the maps that it holds.
func (s *soak) charged(t *testing.T, agent *lab.Process) float64 {
	t.Helper()
	directory := fmt.Sprint("/proc/", agent.Pid(), "/fdinfo/")
	entries, err := os.ReadDir(directory)
	if err != nil {
		t.Fatal(err)
	}
	maps := map[float64]float64{} // bytes by number
	for _, entry := range entries {
		// A descriptor may have been closed since.
		if text, err := os.ReadFile(directory + entry.Name()); err == nil && strings.Contains(string(text), "map_id:") {
			maps[number(t, string(text), "map_id:")] = number(t, string(text), "memlock:")
		}
	}
	bytes := 0.
	for _, size := range maps {
		bytes += size
	}
	return statusKiB(t, agent, "VmHWM:")/1024 + bytes/(1<<20)
}

// agentLimitMiB is the memory that the chart gives an agent by default.
func agentLimitMiB(t *testing.T) float64 {
	t.Helper()
	text, err := os.ReadFile("../../config/agent/agent.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var agents appsv1.DaemonSet
	if err := yaml.Unmarshal(text, &agents); err != nil {
		t.Fatal(err)
	}
	return agents.Spec.Template.Spec.Containers[0].Resources.Limits.Memory().AsApproximateFloat64() / (1 << 20)
}

// number is what stands behind a field.
func number(t *testing.T, text, field string) float64 {
	t.Helper()
	_, after, _ := strings.Cut(text, field)
	words := strings.Fields(after)
	if len(words) == 0 {
		t.Fatalf("there is no %s in %q", field, text)
	}
	value, err := strconv.ParseFloat(words[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// growthPct compares the last third of the cycles with the first.
func (s *soak) growthPct(t *testing.T) (most float64) {
	t.Helper()
	third := (len(s.memory) + 2) / 3
	for name := range s.memory[0] {
		of := func(cycles []map[string]float64) float64 {
			var values []float64
			for _, cycle := range cycles {
				values = append(values, cycle[name])
			}
			return testlab.Median(values)
		}
		growth := 100 * (of(s.memory[len(s.memory)-third:])/of(s.memory[:third]) - 1)
		t.Logf("%s grew by %.2f %%", name, growth)
		most = max(most, growth)
	}
	return most
}
