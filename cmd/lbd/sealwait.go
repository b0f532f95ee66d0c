package main

import (
	"errors"
	"fmt"

	"lbd/cluster/state"
	"lbd/tls/seal"
)

// A node that was away while the sealing keys were rotated meets certificates whose keys it cannot open. It serves the rest, or what it had
// of them, and these as soon as it has got the sealing key from another node.

// hasOthers tells whether somebody else may have a sealing key that is missing here.
func hasOthers(s *state.State) bool {
	n := 0
	for range s.Nodes() {
		n++
	}
	return n > 1
}

// missed notes that a certificate waits for a sealing key, and has it asked for. The error says so.
func (a *appliance) missed(certificate string, sealed []byte, err error) error {
	if !errors.Is(err, seal.ErrUnknownKey) {
		delete(a.keyless, certificate)
		return err
	}
	id, _ := seal.KeyOf(sealed) // it was read just now
	a.keyless[certificate] = true
	if a.keyMissing != nil {
		a.keyMissing(id)
	}
	if !hasOthers(a.node.State()) {
		return fmt.Errorf("%w: add the line of key %s to the sealing keys, from a copy, and start the node anew", err, id)
	}
	return fmt.Errorf("its key is sealed under sealing key %s, which this node does not have yet: the others are asked for it", id)
}

// keysMoved has the certificates that wait for a sealing key tried again. Any goroutine may call it.
func (a *appliance) keysMoved() {
	select {
	case a.rekeyed <- struct{}{}:
	default:
	}
}
