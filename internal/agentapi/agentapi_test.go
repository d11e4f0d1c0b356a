// SPDX-License-Identifier: Apache-2.0

package agentapi_test

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/agentapi"
)

func TestAnEventSurvivesItsJSON(t *testing.T) {
	sent := agentapi.Event{
		Type: agentapi.EventSubflow, Endpoint: "shop/web", Token: 0xabc, Path: "blue",
		Local: netip.MustParseAddrPort("10.0.0.1:80"), Remote: netip.MustParseAddrPort("[fd00::2]:4000"), SentBytes: 7,
	}
	text, err := json.Marshal(sent)
	require.NoError(t, err)
	require.Contains(t, string(text), `"token":"0x00000abc"`)
	require.NotContains(t, string(text), "initiatorToken", "what is unknown is left out")
	var read agentapi.Event
	require.NoError(t, json.Unmarshal(text, &read))
	require.Empty(t, cmp.Diff(sent, read, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })))
}

func TestATokenThatIsNoneIsRefused(t *testing.T) {
	for _, text := range []string{"abc", "0x1ffffffff", "-1"} {
		var token agentapi.Token
		require.Error(t, token.UnmarshalText([]byte(text)), text)
	}
}

// The plugin hands on to braid-trace what its own command line has of braid-trace's flags.
func TestTraceFlagsThatAreGivenAreHandedOn(t *testing.T) {
	var plugin, agent agentapi.TraceFlags
	flags := pflag.NewFlagSet("plugin", pflag.ContinueOnError)
	flags.String("pod", "", "")
	plugin.Add(flags)
	require.NoError(t, flags.Parse([]string{"--pod=web", "--type", "DSS", "--bytes", "10", "--token=0x1"}))
	given := agentapi.GivenTraceFlags(flags)
	require.Equal(t, []string{"--bytes=10", "--token=0x1", "--type=DSS"}, given)

	flags = pflag.NewFlagSet("agent", pflag.ContinueOnError)
	agent.Add(flags)
	require.NoError(t, flags.Parse(given))
	require.Equal(t, plugin, agent)
}
