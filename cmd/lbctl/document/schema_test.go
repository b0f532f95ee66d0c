package document

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	lbdv1 "lbd/proto/lbd/v1"
)

// Every message, enum and word that a document can hold is explained, and no comment is given to what is not there.
func TestCommentsAreTheSchemas(t *testing.T) {
	known := map[string]bool{}
	var walk func(md protoreflect.MessageDescriptor)
	walk = func(md protoreflect.MessageDescriptor) {
		if known[commentKey(md)] || md.ParentFile() != lbdv1.File_lbd_v1_resource_proto {
			return
		}
		known[commentKey(md)] = true
		if Comment(md) == "" {
			t.Errorf("%s is not explained", md.FullName())
		}
		for _, fd := range FieldsOf(md) {
			known[commentKey(fd)] = true
			if e := fd.Enum(); e != nil {
				known[commentKey(e)] = true
				for i := range e.Values().Len() {
					known[commentKey(e.Values().Get(i))] = true
				}
			}
			if fd.Message() != nil && !fd.IsMap() {
				walk(fd.Message())
			}
		}
	}
	walk((&lbdv1.Document{}).ProtoReflect().Descriptor())
	walk((&lbdv1.Resource{}).ProtoReflect().Descriptor())
	for key := range comments() {
		if !known[key] {
			t.Errorf("%s is explained and does not exist", key)
		}
	}
	if len(comments()) != len(known) {
		t.Errorf("the source has %d names, the descriptors %d", len(comments()), len(known))
	}
}

func TestDefaultsOfComments(t *testing.T) {
	field := func(path string) protoreflect.FieldDescriptor {
		words := strings.Split(path, ".")
		md := (&lbdv1.Resource{}).ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(words[0])).Message()
		for _, w := range words[1 : len(words)-1] {
			md = md.Fields().ByName(protoreflect.Name(w)).Message()
		}
		return md.Fields().ByName(protoreflect.Name(words[len(words)-1]))
	}
	for path, want := range map[string]string{
		"listener.timeouts.handshake":              "10s",
		"listener.limits.connections":              "1048576",
		"listener.limits.connection_age":           "disabled",
		"listener.tls.default_certificate":         `the certificate named "default" if there is one, else the handshake is refused (unrecognized_name)`,
		"listener.tls.certificates":                "", // speaks of the default certificate
		"listener.allow_underscores":               "false",
		"pool.backends.weight":                     "1",
		"pool.health_check.timeout":                "1s, or half the interval if that is less",
		"pool.health_check.start":                  "UP",
		"pool.health_check.http.expect_status":     `["2xx", "3xx"]`,
		"pool.connections.max_per_backend":         "no limit",
		"pool.hash_on":                             "the client's address",
		"route.forward.retry.budget_percent":       "20",
		"route.forward.retry.per_try_timeout":      "none",
		"route.forward.pools.weight":               "1",
		"route.respond.status":                     "",
		"route.error_pages.content_type":           `"text/html; charset=utf-8"`,
		"cluster_settings.allow_loopback_backends": "false",
	} {
		if got := Default(field(path)); got != want {
			t.Errorf("the default of %s is %q, want %q", path, got, want)
		}
	}
	if !Required(field("pool.name")) || Required(field("pool.balance")) {
		t.Error("pool.name is required, pool.balance is not")
	}
}

func TestDefaultsInForce(t *testing.T) {
	listed := func(m interface{ ProtoReflect() protoreflect.Message }) string {
		return fmt.Sprint(Defaults(m.ProtoReflect()))
	}
	pool := listed(&lbdv1.Pool{Backends: []*lbdv1.Backend{{Address: "a:1"}}, ConnectTimeout: durationpb.New(1),
		HealthCheck: &lbdv1.HealthCheck{Check: &lbdv1.HealthCheck_Http{Http: &lbdv1.HttpCheck{}}}})
	for _, want := range []string{`{backends["a:1"].weight 1}`, "{health_check.http.path \"/\"}", "{health_check.rise 2}", "{connections.idle_per_backend 4096}"} {
		if !strings.Contains(pool, want) {
			t.Errorf("%s is not in %s", want, pool)
		}
	}
	for _, not := range []string{"{connect_timeout", "ejection", "queue", "tls", "tcp"} {
		if strings.Contains(pool, not) {
			t.Errorf("%s is in %s", not, pool)
		}
	}
	plain := listed(&lbdv1.Listener{Protocol: lbdv1.Protocol_PROTOCOL_HTTP})
	if secure := listed(&lbdv1.Listener{Protocol: lbdv1.Protocol_PROTOCOL_HTTPS}); strings.Contains(plain, "tls.") || !strings.Contains(secure, "{tls.min_version TLS12}") {
		t.Errorf("in the clear %s, in TLS %s", plain, secure)
	}
}
