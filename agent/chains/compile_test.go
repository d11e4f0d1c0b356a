// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/endpoint"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// Small alphabets, so that matches and packets often meet.
var (
	addressTexts = []string{"10.0.0.1", "10.0.0.2", "10.0.1.1", "192.168.0.1", "fd00::1", "fd00::2", "fd00:0:0:1::1", "::1"}
	cidrTexts    = []string{
		"10.0.0.0/24", "10.0.0.1/32", "10.0.1.7/16", "0.0.0.0/0", "0.0.0.0/1", "fd00::/64", "fd00::1/128", "::/0", "::/64", "::/80", "::/96", "8000::/1",
	}
	ports      = []uint16{1, 80, 443, 5001, 65535}
	tokens     = []uint32{1, 0x89abcdef, 0xffffffff}
	amounts    = []string{"0", "1", "1500", "1k", "1Ki", "1.5Ki", "1G"}
	packets    = slices.Sorted(keysOf(packetTypeBits))
	testPaths  = map[string]uint8{"blue": 0, "green": 3, "red": 7}
	pathNames  = []string{"blue", "green", "red", "absent"}
	directions = []v1alpha1.Direction{v1alpha1.DirectionFromEndpoint, v1alpha1.DirectionToEndpoint}

	programNames     = []string{"first", "second"}
	testSurroundings = Surroundings{Paths: testPaths, Programs: map[ProgramName]uint32{{"web", "first"}: firstSlot, {"web", "second"}: firstSlot + 1}}
)

const firstSlot = 5

func keysOf[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for key := range m {
			if !yield(key) {
				return
			}
		}
	}
}

// sometimes gives what draw gives, and more often nothing.
func sometimes[T any](t *rapid.T, label string, draw func(*rapid.T) T) (value T) {
	if rapid.IntRange(0, 3).Draw(t, label) == 0 {
		return draw(t)
	}
	return value
}

func draw[T any](t *rapid.T, label string, from []T) T { return rapid.SampledFrom(from).Draw(t, label) }

func list[T any](draw func(*rapid.T) T) func(*rapid.T) []T {
	return func(t *rapid.T) (values []T) {
		for range rapid.IntRange(1, 3).Draw(t, "length") {
			values = append(values, draw(t))
		}
		return values
	}
}

func drawIP(t *rapid.T) v1alpha1.IPAddress {
	return v1alpha1.IPAddress(draw(t, "address", addressTexts))
}

func drawPort(t *rapid.T) int32 { return int32(draw(t, "port", ports)) }

func drawTuple(t *rapid.T) *v1alpha1.SubflowTuple {
	return &v1alpha1.SubflowTuple{SourceAddress: drawIP(t), SourcePort: drawPort(t), DestinationAddress: drawIP(t), DestinationPort: drawPort(t)}
}

func drawSide(t *rapid.T) *v1alpha1.Side {
	return &v1alpha1.Side{
		CIDR: sometimes(t, "cidr", func(t *rapid.T) v1alpha1.CIDR { return v1alpha1.CIDR(draw(t, "range", cidrTexts)) }),
		Ports: sometimes(t, "ports", list(func(t *rapid.T) v1alpha1.PortRange {
			r := v1alpha1.PortRange{Port: drawPort(t)}
			if last := drawPort(t); last >= r.Port {
				r.EndPort = last
			}
			return r
		})),
	}
}

func drawByteRange(t *rapid.T) *v1alpha1.ByteRange {
	var r v1alpha1.ByteRange
	if rapid.Bool().Draw(t, "from") {
		r.From = new(resource.MustParse(draw(t, "first", amounts)))
	}
	if to := resource.MustParse(draw(t, "beyond", amounts)); to.Sign() > 0 && (r.From == nil || to.Cmp(*r.From) > 0) {
		r.To = &to
	}
	return &r
}

func drawSelectors(t *rapid.T) v1alpha1.Selectors {
	return v1alpha1.Selectors{
		Token:   sometimes(t, "token", func(t *rapid.T) string { return fmt.Sprintf("0x%08x", draw(t, "token", tokens)) }),
		Subflow: sometimes(t, "subflow", drawTuple),
		AddressPair: sometimes(t, "addressPair", func(t *rapid.T) []v1alpha1.IPAddress {
			return []v1alpha1.IPAddress{drawIP(t), drawIP(t)}
		}),
		Source:      sometimes(t, "source", drawSide),
		Destination: sometimes(t, "destination", drawSide),
		Direction:   sometimes(t, "direction", func(t *rapid.T) v1alpha1.Direction { return draw(t, "direction", directions) }),
		PacketTypes: sometimes(t, "packetTypes", list(func(t *rapid.T) v1alpha1.PacketType { return draw(t, "type", packets) })),
		Paths:       sometimes(t, "paths", list(func(t *rapid.T) v1alpha1.PathName { return v1alpha1.PathName(draw(t, "path", pathNames)) })),
		Sequence: sometimes(t, "sequence", func(t *rapid.T) *v1alpha1.SequenceRanges {
			return &v1alpha1.SequenceRanges{Data: sometimes(t, "data", drawByteRange), Subflow: sometimes(t, "subflow", drawByteRange)}
		}),
		Sent: sometimes(t, "sent", func(t *rapid.T) *v1alpha1.SentRanges {
			return &v1alpha1.SentRanges{Subflow: sometimes(t, "subflow", drawByteRange), Connection: sometimes(t, "connection", drawByteRange)}
		}),
		Backup: sometimes(t, "backup", func(t *rapid.T) *bool { return new(rapid.Bool().Draw(t, "backup")) }),
		Program: sometimes(t, "program", func(t *rapid.T) *v1alpha1.ProgramSelector {
			return &v1alpha1.ProgramSelector{Name: draw(t, "name", programNames)}
		}),
	}
}

func drawNested(t *rapid.T) v1alpha1.NestedMatch {
	return v1alpha1.NestedMatch{
		Selectors: drawSelectors(t), All: sometimes(t, "all", list(drawSelectors)), Any: sometimes(t, "any", list(drawSelectors)),
		Not: sometimes(t, "not", func(t *rapid.T) *v1alpha1.Selectors { return new(drawSelectors(t)) }),
	}
}

func drawMatch(t *rapid.T) *v1alpha1.Match {
	return &v1alpha1.Match{
		Selectors: drawSelectors(t), All: sometimes(t, "all", list(drawNested)), Any: sometimes(t, "any", list(drawNested)),
		Not: sometimes(t, "not", func(t *rapid.T) *v1alpha1.NestedMatch { return new(drawNested(t)) }),
	}
}

func drawEnd(t *rapid.T) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(draw(t, "address", addressTexts)), draw(t, "port", ports))
}

func drawAmount(t *rapid.T) uint64 {
	quantity := resource.MustParse(draw(t, "amount", amounts))
	return uint64(quantity.Value()) + uint64(rapid.IntRange(0, 1).Draw(t, "more"))
}

func drawFacts(t *rapid.T) *facts {
	known := func(t *rapid.T) *uint64 { return new(drawAmount(t)) }
	return &facts{
		direction: draw(t, "direction", directions), local: drawEnd(t), remote: drawEnd(t),
		token: draw(t, "token", append(tokens, 0)), initiatorToken: draw(t, "initiatorToken", append(tokens, 0)),
		path:         draw(t, "path", []string{"", "blue", "green", "red"}),
		types:        sometimes(t, "types", list(func(t *rapid.T) v1alpha1.PacketType { return draw(t, "type", packets) })),
		dataSequence: sometimes(t, "dataSequence", known), subflowSeq: sometimes(t, "subflowSequence", known),
		subflowSent: drawAmount(t), connectionSent: drawAmount(t), backup: rapid.Bool().Draw(t, "backup"),
		answers: map[string]bool{"first": rapid.Bool().Draw(t, "first"), "second": rapid.Bool().Draw(t, "second")},
	}
}

func rulesOf(matches ...*v1alpha1.Match) (rules []v1alpha1.PlanRule) {
	for i, match := range matches {
		rules = append(rules, v1alpha1.PlanRule{Policy: "MPTCPPolicy/team/web", Rule: v1alpha1.Rule{
			Name: fmt.Sprintf("rule-%d", i), Match: match, Actions: []v1alpha1.Action{{Type: v1alpha1.ActionRecord}},
		}})
	}
	return rules
}

func TestAChainMatchesWhatItsRulesSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules := rulesOf(drawMatch(t), drawMatch(t))
		chain, err := Compile(rules, testSurroundings)
		if err != nil {
			if strings.Contains(err.Error(), "conditions") || strings.Contains(err.Error(), "program: Too many") {
				t.Skip("too large")
			}
			t.Fatal(err)
		}
		checkForm(t, chain)
		for range 20 {
			packet := drawFacts(t)
			var expected []int
			for i := range rules {
				if matches(rules[i].Match, packet) {
					expected = append(expected, i)
				}
			}
			if hits := run(chain, packet, testPaths); !slices.Equal(hits, expected) {
				t.Fatalf("rules %v matched instead of %v\npacket %+v\nrules %s\n%s", hits, expected, packet, asJSON(rules), describe(chain))
			}
		}
	})
}

func asJSON(value any) string {
	text, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(text)
}

type failer interface {
	Helper()
	Fatalf(string, ...any)
}

// checkForm checks what the programs rely on: all jumps lead forwards to a
// selector of the same rule, or end.
func checkForm(t failer, chain *Chain) {
	t.Helper()
	used, actions := uint16(0), uint16(0)
	for i := range chain.Rules {
		rule := chain.Rule[i]
		if rule.FirstAction != actions {
			t.Fatalf("rule %d: the first action is %d instead of %d", i, rule.FirstAction, actions)
		}
		actions += uint16(rule.Actions)
		if rule.FirstSelector >= endpoint.NotMatched {
			continue
		}
		if rule.FirstSelector != used {
			t.Fatalf("rule %d: the first selector is %d instead of %d", i, rule.FirstSelector, used)
		}
		last := used
		for at := used; at <= last; at++ {
			selector := chain.Selector[at]
			for _, next := range []uint16{selector.IfTrue, selector.IfFalse} {
				if next <= at || int(next) >= endpoint.MaxSelectors && next < endpoint.NotMatched {
					t.Fatalf("rule %d: selector %d jumps to %d", i, at, next)
				}
				if next < endpoint.NotMatched {
					last = max(last, next)
				}
			}
		}
		used = last + 1
	}
}

// A condition that becomes true never makes a rule fail: on this rests that what
// is not known yet can be bounded from both sides.
func TestAChainIsMonotoneInItsConditions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chain, err := Compile(rulesOf(drawMatch(t)), testSurroundings)
		if err != nil {
			t.Skip("too large")
		}
		var truth [endpoint.MaxSelectors]bool
		for i := range truth {
			truth[i] = rapid.Bool().Draw(t, "condition")
		}
		before := walk(chain, truth)
		truth[rapid.IntRange(0, endpoint.MaxSelectors-1).Draw(t, "changed")] = true
		if before && !walk(chain, truth) {
			t.Fatalf("with one condition more that holds it matches no longer\n%s", describe(chain))
		}
	})
}

func walk(chain *Chain, truth [endpoint.MaxSelectors]bool) bool {
	at := chain.Rule[0].FirstSelector
	for at < endpoint.NotMatched {
		if truth[at] {
			at = chain.Selector[at].IfTrue
		} else {
			at = chain.Selector[at].IfFalse
		}
	}
	return at == endpoint.Matched
}

func TestTheFormIsThatOfThePrograms(t *testing.T) {
	for _, c := range []struct{ here, there any }{
		{Attachment{}, endpoint.FromEndpointAttachment{}},
		{row{}, endpoint.FromEndpointCounters{}.Rule},
	} {
		here, there := fieldsOf("", reflect.TypeOf(c.here), 0), fieldsOf("", reflect.TypeOf(c.there), 0)
		if diff := cmp.Diff(there, here); diff != "" {
			t.Errorf("%T differs:\n%s", c.here, diff)
		}
	}
	spec, err := endpoint.LoadFromEndpoint()
	if err != nil {
		t.Fatal(err)
	}
	if size := spec.Maps["chains"].InnerMap.ValueSize; size != uint32(unsafe.Sizeof(Chain{})) {
		t.Errorf("a chain has %d bytes instead of %d", unsafe.Sizeof(Chain{}), size)
	}
	if spec.Maps["chains"].MaxEntries != endpoint.MaxChains || spec.Maps["chain_counters"].MaxEntries != endpoint.MaxEndpoints {
		t.Errorf("the programs have room for %d chains and %d endpoints", spec.Maps["chains"].MaxEntries, spec.Maps["chain_counters"].MaxEntries)
	}
}

// fieldsOf lists the fields, those of inner structures too, with offset and size.
func fieldsOf(name string, of reflect.Type, offset uintptr) (fields []string) {
	switch of.Kind() {
	case reflect.Struct:
		for i := range of.NumField() {
			if field := of.Field(i); field.Type.Size() > 0 {
				fields = append(fields, fieldsOf(name+"."+field.Name, field.Type, offset+field.Offset)...)
			}
		}
		return fields
	case reflect.Array:
		if of.Elem().Kind() == reflect.Struct {
			return append(fieldsOf(name+"[]", of.Elem(), offset), fmt.Sprintf("%s has %d", name, of.Len()))
		}
	}
	return []string{fmt.Sprintf("%s at %d has %d bytes", name, offset, of.Size())}
}

func rateLimit(rate string) v1alpha1.Action {
	return v1alpha1.Action{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{Rate: resource.MustParse(rate)}}
}

func withActions(actions ...v1alpha1.Action) []v1alpha1.PlanRule {
	rules := rulesOf(nil)
	rules[0].Actions = actions
	return rules
}

func withSelectors(selectors v1alpha1.Selectors) []v1alpha1.PlanRule {
	return rulesOf(&v1alpha1.Match{All: []v1alpha1.NestedMatch{{Any: []v1alpha1.Selectors{{}, selectors}}}})
}

func repeated(count int, rule v1alpha1.PlanRule) []v1alpha1.PlanRule {
	rules := slices.Repeat([]v1alpha1.PlanRule{rule}, count)
	for i := range rules {
		rules[i].Name = fmt.Sprintf("rule-%d", i)
	}
	return rules
}

func TestRulesThatDoNotFitAreNamed(t *testing.T) {
	tuple := func(port int32) *v1alpha1.SubflowTuple {
		return &v1alpha1.SubflowTuple{SourceAddress: "10.0.0.1", SourcePort: port, DestinationAddress: "10.0.0.2", DestinationPort: 80}
	}
	const inside = `rule "rule-0" of MPTCPPolicy/team/web: match.all[0].any[1].`
	for _, c := range []struct {
		name     string
		rules    []v1alpha1.PlanRule
		expected string
	}{
		{"a rate without bits", withActions(rateLimit("0")), `rule "rule-0" of MPTCPPolicy/team/web: actions[0].rateLimit.rate: Invalid value: "0"`},
		{"a rate of less than a byte", withActions(rateLimit("7")), "actions[0].rateLimit.rate"},
		{"a rate in parts of bits", withActions(rateLimit("20500m")), "actions[0].rateLimit.rate"},
		{"no rate", withActions(v1alpha1.Action{Type: v1alpha1.ActionRateLimit}), "actions[0].rateLimit: Required"},
		{"a mechanism of a later version", withActions(v1alpha1.Action{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{Rate: resource.MustParse("1M"), Mechanism: "Magic"}}), `actions[0].rateLimit.mechanism: Invalid value: "Magic"`},
		{"a scope of a later version", withActions(v1alpha1.Action{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{Rate: resource.MustParse("1M"), Per: "Node"}}), `actions[0].rateLimit.per: Invalid value: "Node"`},
		{"an action of a later version", withActions(v1alpha1.Action{Type: v1alpha1.ActionDrop}, v1alpha1.Action{Type: "Dance"}), `actions[1].type: Unsupported value: "Dance"`},
		{"a backup state that is not said", withActions(v1alpha1.Action{Type: v1alpha1.ActionSetBackup}), "actions[0].setBackup.backup: Required"},
		{"a custom action without a program", withActions(v1alpha1.Action{Type: v1alpha1.ActionRunProgram}), "actions[0].runProgram: Required"},
		{"a program that is not loaded", withActions(v1alpha1.Action{Type: v1alpha1.ActionRunProgram, RunProgram: &v1alpha1.RunProgram{Program: "shape"}}), `actions[0].runProgram.program: Invalid value: "shape": is not loaded`},
		{"more custom actions than a packet may run through", withActions(slices.Repeat([]v1alpha1.Action{{Type: v1alpha1.ActionRunProgram, RunProgram: &v1alpha1.RunProgram{Program: "known"}}}, 9)...), `actions[8].runProgram: Too many: 9: must have at most 8`},
		{"a program in a match that is not loaded", withSelectors(v1alpha1.Selectors{Program: &v1alpha1.ProgramSelector{Name: "shape"}}), inside + `program.name: Invalid value: "shape": is not loaded`},
		{"more programs in matches than a packet may run through", repeated(9, rulesOf(asking("known"))[0]), `rule "rule-8" of MPTCPPolicy/team/web: match.program: Too many: 9: must have at most 8`},
		{"127 actions and two programs in matches", slices.Concat(rulesOf(asking("known"), asking("known")), repeated(15, withActions(slices.Repeat([]v1alpha1.Action{{Type: v1alpha1.ActionRecord}}, 8)...)[0]), withActions(slices.Repeat([]v1alpha1.Action{{Type: v1alpha1.ActionRecord}}, 5)...)), "actions: with this rule the chain has 129 actions, and can have 128 at most"},
		{"a token that is none", withSelectors(v1alpha1.Selectors{Token: "0x123"}), inside + "token"},
		{"an address that is none", withSelectors(v1alpha1.Selectors{AddressPair: []v1alpha1.IPAddress{"10.0.0.1", "here"}}), inside + `addressPair[1]: Invalid value: "here"`},
		{"one address of a pair", withSelectors(v1alpha1.Selectors{AddressPair: []v1alpha1.IPAddress{"10.0.0.1"}}), inside + "addressPair"},
		{"a range that is none", withSelectors(v1alpha1.Selectors{Source: &v1alpha1.Side{CIDR: "10.0.0.1"}}), inside + "source.cidr"},
		{"ports in the wrong order", withSelectors(v1alpha1.Selectors{Destination: &v1alpha1.Side{Ports: []v1alpha1.PortRange{{Port: 5, EndPort: 4}}}}), inside + "destination.ports[0]"},
		{"bytes in the wrong order", withSelectors(v1alpha1.Selectors{Sequence: &v1alpha1.SequenceRanges{Data: &v1alpha1.ByteRange{From: new(resource.MustParse("1k")), To: new(resource.MustParse("1k"))}}}), inside + "sequence.data.to"},
		{"fewer bytes than none", withSelectors(v1alpha1.Selectors{Sent: &v1alpha1.SentRanges{Connection: &v1alpha1.ByteRange{From: new(resource.MustParse("-1"))}}}), inside + "sent.connection.from"},
		{"a packet type of a later version", withSelectors(v1alpha1.Selectors{PacketTypes: []v1alpha1.PacketType{"SYN", "SYM"}}), inside + "packetTypes[1]"},
		{"a direction of a later version", withSelectors(v1alpha1.Selectors{Direction: "Sideways"}), inside + "direction"},
		{"65 rules", repeated(65, rulesOf(nil)[0]), "65 rules: a chain can have 64 at most"},
		{"33 subflows", repeated(33, rulesOf(&v1alpha1.Match{Selectors: v1alpha1.Selectors{Subflow: tuple(1)}})[0]), `rule "rule-32" of MPTCPPolicy/team/web: match: with this rule the chain has 264 conditions, and can have 256 at most`},
		{"17 rules of 8 actions", repeated(17, withActions(slices.Repeat([]v1alpha1.Action{{Type: v1alpha1.ActionRecord}}, 8)...)[0]), `rule "rule-16" of MPTCPPolicy/team/web: actions: with this rule the chain has 136 actions, and can have 128 at most`},
	} {
		t.Run(c.name, func(t *testing.T) {
			chain, err := Compile(c.rules, Surroundings{Programs: map[ProgramName]uint32{{"web", "known"}: 1}})
			if err == nil || !strings.Contains(err.Error(), c.expected) {
				t.Errorf("the error is %v\nwithout %s", err, c.expected)
			}
			if chain != nil {
				t.Error("there is a chain all the same")
			}
		})
	}
}

func asking(program string) *v1alpha1.Match {
	return &v1alpha1.Match{Selectors: v1alpha1.Selectors{Program: &v1alpha1.ProgramSelector{Name: program}}}
}

// What else a match has decides first, also where it stands behind the program.
func TestAProgramInAMatchIsAskedWhereItAloneDecides(t *testing.T) {
	match := asking("first")
	match.Any = []v1alpha1.NestedMatch{
		{Selectors: v1alpha1.Selectors{PacketTypes: []v1alpha1.PacketType{v1alpha1.PacketSYN}}},
		{Not: &asking("second").Selectors},
	}
	chain, err := Compile(rulesOf(match), testSurroundings)
	require.NoError(t, err)
	for _, c := range []struct {
		of      string
		types   []v1alpha1.PacketType
		answers map[string]bool
		asked   []string
		hits    bool
	}{
		{"a SYN asks the first alone", []v1alpha1.PacketType{v1alpha1.PacketSYN}, map[string]bool{"first": true, "second": true}, []string{"first"}, true},
		{"data asks both", nil, map[string]bool{"first": true, "second": false}, []string{"second", "first"}, true},
		{"a no ends it", nil, map[string]bool{"first": true, "second": true}, []string{"second"}, false},
		{"neither a program that is gone nor its not holds", nil, map[string]bool{"first": true}, []string{"second"}, false},
	} {
		packet := &facts{direction: v1alpha1.DirectionFromEndpoint, types: c.types, answers: c.answers}
		hits := run(chain, packet, testPaths)
		if (len(hits) == 1) != c.hits || !slices.Equal(packet.asked, c.asked) {
			t.Errorf("%s: it asked %v, and the rules %v matched", c.of, packet.asked, hits)
		}
	}
	if chain.Needs&endpoint.NeedsOptions == 0 {
		t.Error("programs are not told of the options")
	}
}

func TestAnErrorSaysWhyABlockIsNotLoaded(t *testing.T) {
	rules := withActions(v1alpha1.Action{Type: v1alpha1.ActionRunProgram, RunProgram: &v1alpha1.RunProgram{Program: "shape"}})
	_, err := Compile(rules, Surroundings{Refused: map[ProgramName]error{{"web", "shape"}: errors.New("R1 is no pointer")}})
	if err == nil || !strings.HasSuffix(err.Error(), "is not loaded on this node: R1 is no pointer") {
		t.Errorf("the error is %v", err)
	}
}

func TestALimitKeepsItsNumberWhileOtherRulesComeAndGo(t *testing.T) {
	rules := repeated(3, withActions(rateLimit("1M"), rateLimit("2M"))[0])
	whole, err := Compile(rules, Surroundings{})
	if err != nil {
		t.Fatal(err)
	}
	part, err := Compile(rules[2:], Surroundings{})
	if err != nil {
		t.Fatal(err)
	}
	if whole.Action[4].Limit != part.Action[0].Limit || whole.Action[5].Limit != part.Action[1].Limit {
		t.Errorf("the limits of rule-2 were %+v and are %+v", whole.Action[4:6], part.Action[:2])
	}
	numbers := map[uint32]bool{0: true}
	for i := range 6 {
		numbers[whole.Action[i].Limit] = true
	}
	if len(numbers) != 7 {
		t.Errorf("the six limits have these numbers: %v", numbers)
	}
}

// goldenSurroundings are what the golden files are compiled with.
var goldenSurroundings = Surroundings{Paths: testPaths, Programs: map[ProgramName]uint32{{"edge", "shape"}: 5}}

func TestGolden(t *testing.T) {
	inputs, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no input under testdata: %v", err)
	}
	for _, input := range inputs {
		t.Run(strings.TrimSuffix(filepath.Base(input), ".yaml"), func(t *testing.T) {
			text, err := os.ReadFile(input)
			if err != nil {
				t.Fatal(err)
			}
			var rules []v1alpha1.PlanRule
			if err := yaml.UnmarshalStrict(text, &rules); err != nil {
				t.Fatal(err)
			}
			chain, err := Compile(rules, goldenSurroundings)
			if err != nil {
				t.Fatal(err)
			}
			compareGolden(t, strings.TrimSuffix(input, ".yaml")+".golden", describe(chain))
		})
	}
}

func compareGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	expected, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(expected), got); diff != "" {
		t.Errorf("%s differs (go test ./agent/chains -update writes it anew):\n%s", file, diff)
	}
}

// describe shows a chain with one line for each selector and action.
func describe(chain *Chain) string {
	var b strings.Builder
	fmt.Fprintf(&b, "rules %d needs %d\n", chain.Rules, chain.Needs)
	for i := range chain.Rules {
		rule := chain.Rule[i]
		fmt.Fprintf(&b, "rule %d: begins %s, needs %d, directions %d\n", i, jump(rule.FirstSelector), rule.Needs, rule.Directions)
		for at := rule.FirstSelector; at < endpoint.NotMatched; at++ {
			s := chain.Selector[at]
			fmt.Fprintf(&b, "  %3d: kind %2d negated %d, true %s, false %s, mask %#x, from %d to %d, %x/%x\n",
				at, s.Kind, s.Negated, jump(s.IfTrue), jump(s.IfFalse), s.Mask, s.From, s.To, inBytes(s.Address), inBytes(s.Netmask))
			if s.IfTrue >= endpoint.NotMatched && s.IfFalse >= endpoint.NotMatched {
				break
			}
		}
		for _, a := range chain.Action[rule.FirstAction:][:rule.Actions] {
			fmt.Fprintf(&b, "  action %d: mechanism %d scope %d flag %d limit %#x rate %d value %d\n", a.Kind, a.Mechanism, a.Scope, a.Flag, a.Limit, a.Rate, a.Value)
		}
	}
	return b.String()
}

func inBytes(a Address) []byte {
	return slices.Clone(unsafe.Slice((*byte)(unsafe.Pointer(&a)), unsafe.Sizeof(a)))
}

func jump(to uint16) string {
	switch to {
	case endpoint.Matched:
		return "matched"
	case endpoint.NotMatched:
		return "not matched"
	}
	return fmt.Sprint(to)
}

func FuzzCompile(f *testing.F) {
	inputs, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, input := range inputs {
		text, err := os.ReadFile(input)
		if err != nil {
			f.Fatal(err)
		}
		if text, err = yaml.YAMLToJSON(text); err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var rules []v1alpha1.PlanRule
		if json.Unmarshal(text, &rules) != nil {
			return
		}
		chain, err := Compile(rules, goldenSurroundings)
		if (err == nil) != (chain != nil) {
			t.Fatalf("chain %v, error %v", chain, err)
		}
		if err == nil {
			checkForm(t, chain)
			if int(chain.Rules) != len(rules) {
				t.Fatalf("%d rules became %d", len(rules), chain.Rules)
			}
		}
	})
}

func TestRulesOfTheClusterBindAndThoseOfTenantsDoNot(t *testing.T) {
	backup := true
	actions := []v1alpha1.Action{
		{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{Rate: resource.MustParse("1M")}},
		{Type: v1alpha1.ActionSetBackup, SetBackup: &v1alpha1.SetBackup{Backup: &backup}},
		{Type: v1alpha1.ActionSuppressAddAddr}, {Type: v1alpha1.ActionReleaseAddAddr}, {Type: v1alpha1.ActionRecord},
	}
	tests := map[string][]uint8{
		"MPTCPPolicy/team/web":     {0, 1, 0, 0, 0},
		"ClusterMPTCPPolicy/all":   {0x80, 0x81, 0x80, 0x80, 0},
		v1alpha1.GuardrailsOwner:   {0xc0, 0x81, 0x80, 0x80, 0},
		"ClusterMPTCPPolicy/MPTCP": {0x80, 0x81, 0x80, 0x80, 0},
	}
	for owner, expected := range tests {
		chain, err := Compile([]v1alpha1.PlanRule{{Policy: owner, Rule: v1alpha1.Rule{Name: "a", Actions: actions}}}, Surroundings{})
		if err != nil {
			t.Fatal(err)
		}
		if bound := chain.Rule[0].Enforces; bound != 0 != !strings.HasPrefix(owner, "MPTCPPolicy/") {
			t.Errorf("%s: the rule binds %#x", owner, bound)
		}
		for i, flags := range expected {
			if chain.Action[i].Flag != flags {
				t.Errorf("%s: %s has flags %#x, not %#x", owner, actions[i].Type, chain.Action[i].Flag, flags)
			}
		}
	}
}
