// SPDX-License-Identifier: Apache-2.0

package product

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func auditLine(verb, resource, subresource string) string {
	return `{"verb":"` + verb + `","stageTimestamp":"2026-01-02T03:04:05.678901Z","objectRef":{"resource":"` + resource + `","subresource":"` + subresource + `"}}` + "\n"
}

func TestRequestsAreCountedByVerbAndResourceWithoutThoseOfTheElection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	write := func(text string) {
		file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	whole := auditLine("patch", "mptcppolicies", "status")
	write(auditLine("update", "mptcpnodeplans", "") + auditLine("update", "leases", "") + whole[:20])
	log, err := openRequestLog(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := log.close(); err != nil {
			t.Error(err)
		}
	})
	for _, step := range []struct {
		written string
		want    map[request]int
	}{
		{"", map[request]int{{"update", "mptcpnodeplans"}: 1}},
		{whole[20:] + whole, map[request]int{{"patch", "mptcppolicies/status"}: 2}},
		{strings.Replace(whole, "{", `{"responseStatus":{"code":409},`, 1), map[request]int{{"patch", "mptcppolicies/status refused"}: 1}},
		{auditLine("watch", "leases", ""), map[request]int{{"watch", "leases"}: 1}},
	} {
		write(step.written)
		if got, err := log.take(); err != nil || !maps.Equal(got, step.want) {
			t.Errorf("counted %v (%v), want %v", got, err, step.want)
		}
	}
}
