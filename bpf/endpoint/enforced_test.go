// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"bytes"
	"testing"
	"time"

	"braid.dev/braid/bpf/endpoint"
)

// Flags of actions.
const (
	chosen  = 0x01
	metered = 0x40
	binding = 0x80
)

const (
	backupOff = 1
	backupOn  = 2
)

func TestATenantsRuleDoesNotUndoABackup(t *testing.T) {
	cluster := action{Kind: actionSetBackup, Flag: binding | chosen}
	tenant := action{Kind: actionSetBackup}
	tests := map[string]struct {
		chain  *endpoint.FromEndpointChain
		wanted uint8
	}{
		"that the cluster asks for in each packet": {build(rule{do: []action{cluster}}, rule{do: []action{tenant}}), backupOn},
		"that the cluster asked for once":          {build(rule{when: is(types(typeSYN)), do: []action{cluster}}, rule{do: []action{tenant}}), backupOn},
		"that the cluster does not ask for":        {build(rule{when: is(types(typeReset)), do: []action{cluster}}, rule{do: []action{tenant}}), backupOff},
		"of its own":                               {build(rule{do: []action{{Kind: actionSetBackup, Flag: chosen}}}, rule{do: []action{tenant}}), backupOff},
		"of the cluster's, but the cluster does":   {build(rule{do: []action{cluster}}, rule{do: []action{{Kind: actionSetBackup, Flag: binding}}}), backupOff},
	}
	h := newHost(t)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			forEachVersion(t, func(t *testing.T, e ends) {
				h.forget(t)
				h.use(t, test.chain)
				h.begin(t, e)
				for n := range uint32(5) {
					h.sends(t, dataOf(e, n, 10))
				}
				if wanted := h.mustSubflow(t, e).BackupState.Wanted; wanted != test.wanted {
					t.Errorf("the desired state is %d", wanted)
				}
			})
		})
	}
}

// What the cluster's rules asked for once is not forgotten because the tenant changes
// rules of its own, and is when the cluster's no longer ask for it.
func TestWhatIsEnforcedOutlastsChangesOfATenantsRules(t *testing.T) {
	cluster := rule{when: is(types(typeSYN)), do: []action{{Kind: actionSetBackup, Flag: binding | chosen}}}
	tenant := rule{do: []action{{Kind: actionSetBackup}}}
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, build(cluster))
		h.begin(t, e)
		h.use(t, build(cluster, tenant))
		h.sends(t, dataOf(e, 0, 10))
		if wanted := h.mustSubflow(t, e).BackupState.Wanted; wanted != backupOn {
			t.Errorf("with rules of the tenant's as well the desired state is %d", wanted)
		}
		h.use(t, build(tenant))
		h.sends(t, dataOf(e, 1, 10))
		if wanted := h.mustSubflow(t, e).BackupState.Wanted; wanted != backupOff {
			t.Errorf("with the tenant's alone the desired state is %d", wanted)
		}
	})
}

func TestWhoseLimitHolds(t *testing.T) {
	const subflow, connection, all = 0, 1, 2
	const auto, paced, policed = 0, 1, 3
	cluster := func(rate uint64, scope uint8) action {
		return action{Kind: actionRateLimit, Flag: binding, Mechanism: policed, Scope: scope, Rate: rate}
	}
	tenant := func(rate uint64, scope, mechanism uint8) action {
		return action{Kind: actionRateLimit, Mechanism: mechanism, Scope: scope, Rate: rate}
	}
	guardrail := action{Kind: actionRateLimit, Flag: binding | metered, Mechanism: auto, Scope: all, Rate: 50}
	tests := map[string]struct {
		do        []action
		rate      uint64
		scope     uint8
		mechanism uint8
	}{
		"a tenant's higher one does not replace the cluster's":                    {[]action{cluster(50, subflow), tenant(60, subflow, auto)}, 50, subflow, policed},
		"a tenant's lower one holds, by the cluster's mechanism":                  {[]action{cluster(50, subflow), tenant(40, connection, paced)}, 40, connection, policed},
		"a tenant's lower one for each does not replace a shared one":             {[]action{cluster(50, all), tenant(40, subflow, auto)}, 50, all, policed},
		"nor does a shared one":                                                   {[]action{cluster(50, connection), tenant(40, all, auto)}, 50, connection, policed},
		"the cluster's comes after a tenant's":                                    {[]action{tenant(40, subflow, paced), cluster(50, all)}, 50, all, policed},
		"of the cluster's the lowest holds":                                       {[]action{cluster(50, all), cluster(40, subflow)}, 40, subflow, policed},
		"a tenant's lower one does not keep out one that is shared":               {[]action{cluster(50, subflow), tenant(40, subflow, auto), cluster(45, all)}, 45, all, policed},
		"a tenant's lower one holds under one that is enforced elsewhere too":     {[]action{guardrail, tenant(40, subflow, paced)}, 40, subflow, auto},
		"which a cluster's lower shared one takes the place of":                   {[]action{guardrail, cluster(45, all), tenant(40, subflow, paced)}, 45, all, policed},
		"of a tenant's own the lowest holds, and the mechanism that it asked for": {[]action{tenant(50, all, auto), tenant(40, subflow, paced)}, 40, subflow, paced},
	}
	h := newHost(t)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			forEachVersion(t, func(t *testing.T, e ends) {
				h.forget(t)
				h.use(t, build(rule{do: test.do, directions: 1 << fromEndpoint}))
				h.begin(t, e)
				h.sends(t, e.out())
				got := h.mustSubflow(t, e).Limit[fromEndpoint]
				if got.Rate != test.rate || got.Scope != test.scope || got.Mechanism != test.mechanism {
					t.Errorf("the limit is %+v", got)
				}
			})
		})
	}
}

// Of a chain that changes: the tenant's rule is asked first, the cluster's matched the
// SYN alone.
func TestALimitOfTheClustersOutlastsChangesOfATenantsRules(t *testing.T) {
	const shared = 2
	cluster := rule{when: is(types(typeSYN)), do: []action{{Kind: actionRateLimit, Flag: binding, Scope: shared, Rate: 50}}}
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, build(cluster))
		h.begin(t, e)
		h.use(t, build(cluster, rule{do: []action{{Kind: actionRateLimit, Rate: 40}}}))
		for range 3 {
			h.sends(t, e.out())
			time.Sleep(60 * time.Millisecond)
		}
		if got := h.mustSubflow(t, e).Limit[fromEndpoint]; got.Rate != 50 || got.Scope != shared {
			t.Errorf("the limit is %+v", got)
		}
	})
}

func TestATenantDoesNotGiveBackWhatTheClusterHides(t *testing.T) {
	hide := action{Kind: actionSuppressAddAddr, Flag: binding}
	give := rule{do: []action{{Kind: actionReleaseAddAddr}}}
	onFirst := rule{when: is(port(selectLocalPort, 40000)), do: []action{hide}}
	tests := map[string]struct {
		chain *endpoint.FromEndpointChain
		given bool
	}{
		"in each packet":                           {build(rule{do: []action{hide}}, give), false},
		"on another subflow":                       {build(onFirst, give), false},
		"but what it hid itself":                   {build(rule{do: []action{{Kind: actionSuppressAddAddr}}}, give), true},
		"unless the cluster gives it back as well": {build(onFirst, rule{do: []action{{Kind: actionReleaseAddAddr, Flag: binding}}}), true},
	}
	h := newHost(t)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			forEachVersion(t, func(t *testing.T, e ends) {
				h.forget(t)
				clearMap[endpoint.FromEndpointHiddenKey](t, h.maps.HiddenAddresses)
				h.use(t, test.chain)
				first, second := e, e.port(40001)
				h.begin(t, first)
				h.join(t, second, tokenOf(remoteKey))
				announced := h.receivedAnnouncement(t, first)
				for n := range uint32(10) {
					announced = h.acknowledged(t, first, n) || announced
					announced = h.acknowledged(t, second, n) || announced
				}
				if announced != test.given {
					t.Errorf("the endpoint was told of the address: %t", announced)
				}
			})
		})
	}
}

var secret = []byte{10, 0, 0, 9}

// receivedAnnouncement lets the peer announce an address, and tells whether the
// endpoint learns it.
func (h *host) receivedAnnouncement(t *testing.T, e ends) bool {
	t.Helper()
	h.acknowledged(t, e, 100)
	_, after := h.change(t, h.to, e.in().carrying(timestamps(5, 4), addAddress(0)).frame(), skBuff{Ifindex: h.pod, IngressIfindex: h.nics[blue]})
	return bytes.Contains(after, secret)
}

// acknowledged lets an acknowledgement reach the endpoint, and tells whether it
// carries the address.
func (h *host) acknowledged(t *testing.T, e ends, n uint32) bool {
	t.Helper()
	time.Sleep(15 * time.Millisecond)
	_, after := h.change(t, h.to, e.in().carrying(timestamps(5+n, 4), dataAck()).frame(), skBuff{Ifindex: h.pod, IngressIfindex: h.nics[blue]})
	return bytes.Contains(after, secret)
}
