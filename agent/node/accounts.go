// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/uplink"
)

// Account is what the packet programs count traffic for: the pods of a namespace that one
// policy selects.
type Account struct {
	Namespace string
	// Policy is KIND/NAMESPACE/NAME, or KIND/NAME of the cluster's, as in metrics of rules.
	Policy string
	// Number of the account, from 1.
	Number uint32
}

// Others stands for namespaces and policies that have no account of their own.
const Others = "_others"

const (
	// accountsOfNamespace keeps a tenant with many policies from using up the numbers.
	accountsOfNamespace = 32
	// accountLingers is how long an account stays when its last pod has gone: what that
	// sent last is to be seen by whoever asks now and then.
	accountLingers = 15 * time.Minute
	// maxAccounts have a number; that of the others comes behind them.
	maxAccounts = uplink.OtherAccounts - 1
)

// accounts are whose traffic counts together. They outlive their pods for a while.
type accounts struct {
	wanted map[string]time.Time // by name, when an account had a pod last
	now    func() time.Time
}

func newAccounts() accounts { return accounts{wanted: map[string]time.Time{}, now: time.Now} }

// name is that of the registry; the namespace comes first.
func (a *Account) name() string { return a.Namespace + "/" + a.Policy }

func accountNamed(name string) Account {
	namespace, policy, _ := strings.Cut(name, "/")
	return Account{Namespace: namespace, Policy: policy}
}

// policyText is as policy.RuleOwner has it.
func policyText(of v1alpha1.PolicyReference) string {
	if of.Namespace == "" {
		return of.Kind + "/" + of.Name
	}
	return of.Kind + "/" + of.Namespace + "/" + of.Name
}

// accountsOf are the accounts of the endpoints that are steered, by their places in the
// model. Further policies of a namespace count together, and so do those whose name is
// longer than the registry has room for.
func accountsOf(m *Model) (of map[int]Account) {
	of = map[int]Account{}
	seen := map[string]map[string]bool{}
	order := make([]int, 0, len(m.Endpoints))
	for i := range m.Endpoints {
		if len(m.Endpoints[i].Paths) > 0 {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Compare(policyText(m.Endpoints[a].Policy), policyText(m.Endpoints[b].Policy))
	})
	for _, i := range order {
		account := Account{Namespace: m.Endpoints[i].Namespace, Policy: policyText(m.Endpoints[i].Policy)}
		policies := seen[account.Namespace]
		if policies == nil {
			policies = map[string]bool{}
			seen[account.Namespace] = policies
		}
		if len(account.name()) >= nameLength || len(policies) >= accountsOfNamespace && !policies[account.Policy] {
			account.Policy = Others
		} else {
			policies[account.Policy] = true
		}
		of[i] = account
	}
	return of
}

// names are those that are to have a number: of these accounts, and, as far as there is
// room, of those that had a pod not long ago. Known are the names with a number, also from
// before this agent.
func (a *accounts) names(of map[int]Account, known map[string]*registryEntry) (names []string) {
	now, wanted := a.now(), map[string]bool{}
	for _, account := range of {
		wanted[account.name()] = true
		a.wanted[account.name()] = now
	}
	for name := range known {
		if _, ok := a.wanted[name]; !ok {
			a.wanted[name] = now
		}
	}
	for name, since := range a.wanted {
		if now.Sub(since) >= accountLingers || len(a.wanted) > maxAccounts && !wanted[name] {
			delete(a.wanted, name)
			continue
		}
		names = append(names, name)
	}
	return names
}

// takeAccountNumbers gives endpoints the numbers of their accounts. Those for which there is none
// have one together.
func (m *Model) takeAccountNumbers(of map[int]Account, by map[string]*registryEntry) {
	for i, account := range of {
		if entry := by[account.name()]; entry != nil {
			m.Endpoints[i].Account = entry.Number
		} else {
			m.Endpoints[i].Account = uplink.OtherAccounts
		}
	}
	for name, entry := range by {
		account := accountNamed(name)
		account.Number = entry.Number
		m.Accounts = append(m.Accounts, account)
	}
	if slices.ContainsFunc(m.Endpoints, func(e Endpoint) bool { return e.Account == uplink.OtherAccounts }) {
		m.Accounts = append(m.Accounts, Account{Namespace: Others, Policy: Others, Number: uplink.OtherAccounts})
	}
	slices.SortFunc(m.Accounts, func(a, b Account) int { return cmp.Compare(a.Number, b.Number) })
}
