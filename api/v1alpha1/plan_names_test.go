// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
)

func TestThePlansNamesAreReadAsTheyWereWritten(t *testing.T) {
	endpoints := []v1alpha1.PlanEndpoint{
		{Namespace: "shop", Name: "web-0", Addresses: []string{"10.244.1.7", "fd00::7"}},
		{Namespace: "shop", Name: "starting"},
		{Namespace: "vms", Name: "guest.with.dots", Addresses: []string{"10.244.1.8"}},
	}
	names, believed := v1alpha1.NamesIn(v1alpha1.PlanNames(endpoints, 7), 7)
	require.True(t, believed)
	require.Equal(t, map[netip.Addr]string{
		netip.MustParseAddr("10.244.1.7"): "shop/web-0", netip.MustParseAddr("fd00::7"): "shop/web-0", netip.MustParseAddr("10.244.1.8"): "vms/guest.with.dots",
	}, names)
	names, believed = v1alpha1.NamesIn(v1alpha1.PlanNames(nil, 1), 1)
	require.True(t, believed, "a plan without endpoints")
	require.Empty(t, names)
}

func TestNamesOfAnotherGenerationAreNotBelieved(t *testing.T) {
	endpoints := []v1alpha1.PlanEndpoint{{Namespace: "shop", Name: "web-0", Addresses: []string{"10.244.1.7"}}}
	for _, text := range []string{v1alpha1.PlanNames(endpoints, 7), "", "shop/web-0=10.244.1.7"} {
		_, believed := v1alpha1.NamesIn(text, 8)
		require.False(t, believed, text)
	}
}

func TestAPlanWithTooManyNamesTellsNone(t *testing.T) {
	var endpoints []v1alpha1.PlanEndpoint
	for i := range 1024 { // as many as a plan may have
		endpoints = append(endpoints, v1alpha1.PlanEndpoint{Namespace: "shop", Name: fmt.Sprint("web-", i), Addresses: []string{fmt.Sprintf("10.244.%d.%d", i/256, i%256)}})
	}
	require.Less(t, len(v1alpha1.PlanNames(endpoints, 1)), 64<<10)
	require.NotEmpty(t, v1alpha1.PlanNames(endpoints, 1))
	for i := range endpoints {
		endpoints[i].Name = strings.Repeat("a", 253)
	}
	_, believed := v1alpha1.NamesIn(v1alpha1.PlanNames(endpoints, 1), 1)
	require.False(t, believed)
}
