//go:build !lbdnext

package state

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	raftv1 "lbd/proto/lbd/raft/v1"
)

// GateMax is the newest kinds of log entries that this build reads and writes. A build that brings a new one counts it up by one, and writes the new
// kind only where State.Gate allows it. There is a build with one kind more for tests of that, with the tag lbdnext: see gate_next.go.
const GateMax = 1

// CommandGate is the gate from which on a command may be written.
func CommandGate(*raftv1.Command) int32 { return 1 }

// isOfNext tells whether what a message says beyond its definition is the kind that the build for tests has more.
func isOfNext(protoreflect.Message) bool { return false }

// next applies a command of that kind.
func (s *State) next(*edit, *raftv1.Command) (*State, Result) {
	return s, Result{Revision: s.revision, Err: ErrUnknownCommand}
}
