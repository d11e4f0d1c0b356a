// SPDX-License-Identifier: Apache-2.0

package programs_test

import (
	"encoding/binary"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/programs"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/endpoint"
)

// setRules makes the endpoint's chain of rules of the API.
func (c *realChain) setRules(t *testing.T, result programs.Result, rules []v1alpha1.Rule) *chains.Chain {
	t.Helper()
	around := chains.Surroundings{Programs: map[chains.ProgramName]uint32{}}
	for key, slot := range result.Slots {
		policy, name, _ := strings.Cut(key, "/")
		around.Programs[chains.ProgramName{Policy: policy, Name: name}] = slot
	}
	var planned []v1alpha1.PlanRule
	for _, rule := range rules {
		planned = append(planned, v1alpha1.PlanRule{Policy: "ClusterMPTCPPolicy/policy", Rule: rule})
	}
	chain, err := chains.Compile(planned, around)
	require.NoError(t, err)
	inner, err := ebpf.NewMap(c.spec.Maps["chains"].InnerMap)
	require.NoError(t, err)
	require.NoError(t, inner.Put(uint32(0), chain))
	require.NoError(t, c.from.Maps["chains"].Put(uint32(0), inner))
	require.NoError(t, inner.Close())
	c.epoch++
	require.NoError(t, c.from.Maps["attachments"].Put(c.on, endpoint.FromEndpointAttachment{
		Interface: c.on, Endpoint: anEndpoint, Chain: c.epoch << 32,
	}))
	return chain
}

func rulesOf(t *testing.T, text string) (rules []v1alpha1.Rule) {
	t.Helper()
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), &rules))
	return rules
}

// data is a segment of the subflow of pureACK, from the pod.
func data(dscp byte, payload int, port uint16) []byte {
	frame := append(pureACK(), make([]byte, payload)...)
	frame[15] = dscp << 2
	binary.BigEndian.PutUint16(frame[16:], uint16(52+payload))
	binary.BigEndian.PutUint16(frame[36:], port)
	return frame
}

// newAsked is a node with the programs large, dscp and stamp in use.
func newAsked(t *testing.T) (*node, *realChain, programs.Result) {
	n, c := newChainNode(t)
	return n, c, n.applyAll(t, n.put(t, "large", "examples/large.bpf.c", ""), n.put(t, "dscp", "examples/dscp.bpf.c", ""),
		n.put(t, "stamp", "examples/stamp.bpf.c", ""))
}

func TestAProgramStandsWhereASelectorStands(t *testing.T) {
	_, c, result := newAsked(t)
	const large, urgent = "program: {name: large, value: 1000}", "program: {name: dscp, value: 46}"
	for match, drops := range map[string]func(dscp byte, payload int, port uint16) bool{
		large:                  func(_ byte, payload int, _ uint16) bool { return payload >= 1000 },
		"not: {" + large + "}": func(_ byte, payload int, _ uint16) bool { return payload < 1000 },
		"all: [{" + large + "}, {not: {" + urgent + "}}]": func(dscp byte, payload int, _ uint16) bool {
			return payload >= 1000 && dscp != 46
		},
		"any: [{" + large + "}, {" + urgent + "}, {destination: {ports: [{port: 22}]}}]": func(dscp byte, payload int, port uint16) bool {
			return payload >= 1000 || dscp == 46 || port == 22
		},
		"not: {any: [{" + large + "}, {destination: {ports: [{port: 22}]}, " + urgent + "}]}": func(dscp byte, payload int, port uint16) bool {
			return payload < 1000 && !(port == 22 && dscp == 46)
		},
		"packetTypes: [Data], not: {not: {" + urgent + "}}": func(dscp byte, _ int, _ uint16) bool { return dscp == 46 },
		"direction: ToEndpoint, " + large:                   func(byte, int, uint16) bool { return false },
	} {
		t.Run(match, func(t *testing.T) {
			c.setRules(t, result, rulesOf(t, "[{name: r, match: {"+match+"}, actions: [{type: Drop}]}]"))
			for _, dscp := range []byte{0, 46} {
				for _, payload := range []int{999, 1000} {
					for _, port := range []uint16{22, 80} {
						wanted := int32(verdictNext)
						if drops(dscp, payload, port) {
							wanted = verdictShot
						}
						for range 3 { // also once the subflow is known
							if got, _ := c.run(t, fromEndpoint, data(dscp, payload, port)); got != wanted {
								t.Errorf("with code point %d, %d bytes and port %d the verdict is %d, wanted %d", dscp, payload, port, got, wanted)
							}
						}
					}
				}
			}
		})
	}
}

func TestRulesBehindAConditionGoOnWhateverItsProgramSays(t *testing.T) {
	_, c, result := newAsked(t)
	c.setRules(t, result, rulesOf(t, `
- {name: before, actions: [{type: Record}]}
- {name: asks, match: {program: {name: large, value: 1000}}, actions: [{type: Record}, {type: ReportSubflow}]}
- {name: behind, match: {not: {program: {name: large, value: 1000}}}, actions: [{type: Record}]}
- {name: last, match: {packetTypes: [Data]}, actions: [{type: Record}]}
- {name: acts, match: {program: {name: large, value: 1000}}, actions: [{type: RunProgram, runProgram: {program: large, value: 1000}}, {type: Drop}]}`))
	for range 10 {
		c.run(t, fromEndpoint, data(0, 500, 80))
	}
	for range 7 {
		if verdict, _ := c.run(t, fromEndpoint, data(0, 1500, 80)); verdict != verdictShot {
			t.Errorf("the verdict of a large segment is %d", verdict)
		}
	}
	for index, wanted := range []uint64{17, 7, 10, 17, 7} {
		if hits, _ := c.hits(t, index); hits != wanted {
			t.Errorf("rule %d matched %d packets, wanted %d", index, hits, wanted)
		}
	}
}

// What a program does to the packet while it is asked stays, and nothing is dropped by it.
func TestAConditionDropsNothing(t *testing.T) {
	n, c := newChainNode(t)
	result := n.applyAll(t, n.put(t, "drop", "testdata/two.bpf.c", "second"), n.put(t, "stamp", "examples/stamp.bpf.c", ""))
	c.setRules(t, result, rulesOf(t, `
- {name: a, match: {program: {name: drop}}, actions: [{type: Record}]}
- {name: b, match: {program: {name: stamp, value: 42}}, actions: [{type: Record}]}`))
	verdict, out := c.run(t, fromEndpoint, pureACK())
	if verdict != verdictNext || len(out) != len(pureACK())+8 {
		t.Errorf("the verdict is %d, and the packet has %d bytes", verdict, len(out))
	}
	for index := range 2 {
		if hits, _ := c.hits(t, index); hits != 1 {
			t.Errorf("rule %d matched %d packets", index, hits)
		}
	}
}

// A rule that drops what a program lets through must not drop all because it is gone.
func TestNeitherAProgramThatIsGoneNorItsNotHolds(t *testing.T) {
	n, c, result := newAsked(t)
	c.setRules(t, result, rulesOf(t, `
- {name: a, match: {program: {name: large}}, actions: [{type: Drop}]}
- {name: b, match: {not: {program: {name: large}}}, actions: [{type: Drop}]}
- {name: c, match: {any: [{not: {program: {name: large}}}, {packetTypes: [PureACK]}]}, actions: [{type: Record}]}`))
	n.applyAll(t)
	if verdict, _ := c.run(t, fromEndpoint, pureACK()); verdict != verdictNext {
		t.Errorf("the verdict is %d", verdict)
	}
	if hits, _ := c.hits(t, 2); hits != 1 {
		t.Errorf("what needs no program matched %d packets", hits)
	}
}

// docs/programs.md.
func TestTheConditionsOfThePageSelectWhatItSays(t *testing.T) {
	page, err := os.ReadFile("../../docs/programs.md")
	require.NoError(t, err)
	_, text, _ := strings.Cut(string(page), "## Programs as conditions")
	_, text, _ = strings.Cut(text, "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	var policy struct {
		Spec struct {
			Programs []v1alpha1.Program `json:"programs"`
			Rules    []v1alpha1.Rule    `json:"rules"`
		} `json:"spec"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(text), &policy))
	require.Len(t, policy.Spec.Programs, 2)
	require.Len(t, policy.Spec.Rules, 1)
	_, c, result := newAsked(t)
	c.setRules(t, result, policy.Spec.Rules)
	wanted := uint64(0)
	for _, dscp := range []byte{0, 46} {
		for _, payload := range []int{999, 1000} {
			for _, port := range []uint16{22, 80} {
				c.run(t, fromEndpoint, data(dscp, payload, port))
				if payload >= 1000 && dscp != 46 && port != 22 {
					wanted++
				}
				if hits, _ := c.hits(t, 0); hits != wanted {
					t.Errorf("after code point %d, %d bytes and port %d the rule matched %d packets, wanted %d", dscp, payload, port, hits, wanted)
				}
			}
		}
	}
}
