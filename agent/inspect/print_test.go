// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"braid.dev/braid/agent/inspect"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/output"
)

func TestWhatIsPrintedForProgramsIsWhole(t *testing.T) {
	read := map[inspect.Format]func([]byte, any) error{
		output.JSON: json.Unmarshal,
		output.YAML: func(data []byte, value any) error { return yaml.Unmarshal(data, value) },
	}
	rules := []agentapi.Rule{{Endpoint: "team/web", Policy: "MPTCPPolicy/team/p", Name: "slow", Hits: 3}}
	for format, unmarshal := range read {
		t.Run(string(format), func(t *testing.T) {
			var output bytes.Buffer
			var subflows []agentapi.Subflow
			if err := inspect.PrintSubflows(&output, format, sample()); err != nil {
				t.Fatal(err)
			}
			if err := unmarshal(output.Bytes(), &subflows); err != nil || !reflect.DeepEqual(subflows, sample()) {
				t.Errorf("%s\nis read as %+v (%v)", output.String(), subflows, err)
			}
			output.Reset()
			var read []agentapi.Rule
			if err := inspect.PrintRules(&output, format, rules); err != nil {
				t.Fatal(err)
			}
			if err := unmarshal(output.Bytes(), &read); err != nil || !reflect.DeepEqual(read, rules) {
				t.Errorf("%s\nis read as %+v (%v)", output.String(), read, err)
			}
		})
	}
}

func TestNothingIsAnEmptyListForPrograms(t *testing.T) {
	for _, format := range []inspect.Format{output.JSON, output.YAML} {
		var output bytes.Buffer
		if err := inspect.PrintSubflows(&output, format, nil); err != nil || output.String() != "[]\n" {
			t.Errorf("as %s it is %q (%v)", format, output.String(), err)
		}
	}
}

func TestEventsArePrintedOneByOne(t *testing.T) {
	begin := time.Date(2026, 11, 21, 18, 0, 0, 0, time.UTC)
	event := agentapi.Event{
		Time: begin, Type: agentapi.EventSubflow, Endpoint: "team/web", Token: 0xabc,
		Local: netip.MustParseAddrPort("10.0.0.1:1"), Remote: netip.MustParseAddrPort("10.0.0.2:2"),
	}
	for format, file := range map[inspect.Format]string{output.JSON: "events.json", output.YAML: "events.yaml"} {
		var output bytes.Buffer
		printer := inspect.EventPrinter(&output, format)
		for range 2 {
			if err := printer(event); err != nil {
				t.Fatal(err)
			}
		}
		goldenAnyWidth(t, file, output.Bytes())
	}
}

func TestOnlyKnownFormatsAreTaken(t *testing.T) {
	var format inspect.Format
	for _, text := range []string{"json", "yaml"} {
		if err := format.Set(text); err != nil || format.String() != text {
			t.Errorf("%s: %s (%v)", text, format, err)
		}
	}
	if format.Set("wide") == nil {
		t.Error("a format was taken that does not exist")
	}
}
