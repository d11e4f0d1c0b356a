// SPDX-License-Identifier: Apache-2.0

package pathmanager

// choose gives a setting of the namespace another value, which may follow from the one that it had
// before; where none is wanted it has that one again. Configure must have succeeded.
func (n *Namespace) choose(setting string, wanted bool, value func(before string) (string, error)) error {
	n.calls.Lock()
	defer n.calls.Unlock()
	n.changes.Lock()
	defer n.changes.Unlock()
	before, known := n.record.Sysctls[setting]
	if !wanted {
		if !known {
			return nil
		}
		return n.sysctls.set(setting, before)
	}
	if !known {
		var err error
		if before, err = n.sysctls.read(setting); err != nil {
			return err
		}
	}
	chosen, err := value(before)
	if err != nil {
		return err
	}
	if !known {
		n.record.Sysctls[setting] = before
		if err := n.record.write(n.options.StatePath); err != nil {
			return err
		}
	}
	return n.sysctls.set(setting, chosen)
}
