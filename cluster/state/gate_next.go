//go:build lbdnext

package state

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	raftv1 "lbd/proto/lbd/raft/v1"
)

// GateMax of the build that tests use as the next version.
const GateMax = 2

// noteField is the command that this build has more: a note for the audit. It is in no definition, so that for any other build it is what a kind is that a
// later version brings.
const noteField = protowire.Number(1000)

// Note is a command of gate 2: the audit says so.
func Note(text string) *raftv1.Command {
	raw := protowire.AppendTag(nil, noteField, protowire.BytesType)
	cmd := &raftv1.Command{}
	cmd.ProtoReflect().SetUnknown(protowire.AppendString(raw, text))
	return cmd
}

// noteOf is a note's text.
func noteOf(m protoreflect.Message) (text string, ok bool) {
	if m.Descriptor() != (&raftv1.Command{}).ProtoReflect().Descriptor() {
		return "", false
	}
	raw := m.GetUnknown()
	number, kind, n := protowire.ConsumeTag(raw)
	if n < 0 || number != noteField || kind != protowire.BytesType {
		return "", false
	}
	text, k := protowire.ConsumeString(raw[n:])
	return text, k >= 0 && n+k == len(raw)
}

// CommandGate is the gate from which on a command may be written.
func CommandGate(cmd *raftv1.Command) int32 {
	if isOfNext(cmd.ProtoReflect()) {
		return 2
	}
	return 1
}

func isOfNext(m protoreflect.Message) bool {
	_, ok := noteOf(m)
	return ok
}

func (s *State) next(e *edit, cmd *raftv1.Command) (*State, Result) {
	text, ok := noteOf(cmd.ProtoReflect())
	if !ok {
		return s, Result{Revision: s.revision, Err: ErrUnknownCommand}
	}
	e.audit("lbd", &timestamppb.Timestamp{}, &raftv1.Origin{Source: "lbd", Method: "note"}, text, 0)
	return e.state(), Result{Revision: s.revision}
}
