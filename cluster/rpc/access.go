package rpc

import (
	"strings"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectalphapb "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// rules say what each method demands of its caller, by full name ("/lbd.v1.ConfigService/Apply"). A method of a service of ours
// has its rule in the proto; one that is registered and not here is refused to everybody.
type rules map[string]*lbdv1.Access

// openToAll are the methods that take no credential: what a load balancer or an orchestrator asks of any server.
var openToAll = map[string]bool{
	healthpb.Health_Check_FullMethodName: true,
	healthpb.Health_Watch_FullMethodName: true,
	healthpb.Health_List_FullMethodName:  true,
}

// openToJoiners are the methods that take a credential of their own, in the message: a node that joins has no other yet.
var openToJoiners = map[string]bool{
	raftv1.PeerService_Join_FullMethodName: true,
}

// foreignRules are those of services whose protos are not ours.
var foreignRules = rules{
	reflectpb.ServerReflection_ServerReflectionInfo_FullMethodName:      {Role: lbdv1.Role_ROLE_VIEWER, Scope: lbdv1.Scope_SCOPE_ANY},
	reflectalphapb.ServerReflection_ServerReflectionInfo_FullMethodName: {Role: lbdv1.Role_ROLE_VIEWER, Scope: lbdv1.Scope_SCOPE_ANY},
}

// readRules reads the rules of the services that a server has.
func readRules(services map[string]grpc.ServiceInfo) rules {
	out := rules{}
	for service, info := range services {
		for _, method := range info.Methods {
			full := "/" + service + "/" + method.Name
			if rule := ruleOf(service, method.Name); rule != nil {
				out[full] = rule
			} else if rule := foreignRules[full]; rule != nil {
				out[full] = rule
			} else {
				out[full] = nil // known, and refused
			}
		}
	}
	return out
}

// ruleOf is a method's access option; nil: it has none, or half of one.
func ruleOf(service, method string) *lbdv1.Access {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil
	}
	s, ok := d.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil
	}
	m := s.Methods().ByName(protoreflect.Name(method))
	if m == nil {
		return nil
	}
	rule, _ := proto.GetExtension(m.Options(), lbdv1.E_Access).(*lbdv1.Access)
	if rule.GetRole() == lbdv1.Role_ROLE_UNSPECIFIED || rule.GetScope() == lbdv1.Scope_SCOPE_UNSPECIFIED {
		return nil
	}
	return rule
}

// permit refuses a caller who may not call a method. What belongs to which owner is the handler's to say.
func (r rules) permit(c Caller, method string) error {
	rule, known := r[method]
	switch {
	case !known: // gRPC answers UNIMPLEMENTED
		return nil
	case c.Kind == kindNode != (rule.GetScope() == lbdv1.Scope_SCOPE_PEER) && rule != nil:
		if c.Kind == kindNode {
			return permissionDenied(reasonRole, "%s calls for nobody: %s is not between nodes", c.Author, shortMethod(method))
		}
		return permissionDenied(reasonRole, "%s is between the nodes of the cluster: %s is none", shortMethod(method), c.Author)
	case rule == nil:
		return permissionDenied(reasonRole, "%s has no rule who may call it: it is refused to everybody", strings.TrimPrefix(method, "/"))
	case c.Role < rule.GetRole():
		return roleTooLow(c, rule.GetRole())
	case c.bound() && rule.GetScope() == lbdv1.Scope_SCOPE_CLUSTER:
		return boundTooTight(c)
	}
	return nil
}
