// SPDX-License-Identifier: Apache-2.0

package pathmanager

// ShareAs has the namespace be a pod of a tenant.
func (n *Namespace) ShareAs(tenant string) { n.share(&Counts{}, tenant) }
