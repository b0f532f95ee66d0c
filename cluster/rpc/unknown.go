package rpc

import (
	"google.golang.org/protobuf/proto"

	"lbd/cluster/state"
)

// refuseUnknown refuses a message with a field that this build does not know. protobuf would leave it aside, and who sent it
// would take for done what nobody has read.
func refuseUnknown(m any) error {
	message, ok := m.(proto.Message)
	if !ok {
		return nil
	}
	if what := state.UnknownField(message); what != "" {
		return invalidField(string(message.ProtoReflect().Descriptor().Name()),
			"holds %s, which this node does not know: it is older than who calls; leave the field out, or put a newer lbd on the node", what)
	}
	return nil
}
