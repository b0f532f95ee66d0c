package state_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// TestTooLong gives each list and text one more than it may hold, and as much as it may.
func TestTooLong(t *testing.T) {
	many := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(strings.ReplaceAll(format, "%", fmt.Sprintf("%05d", i)) + " ")
		}
		return b.String()
	}
	long := func(n int, format string) string { return strings.ReplaceAll(format, "%", strings.Repeat("a", n)) }
	networks := func(field string) func(int) string {
		return func(n int) string {
			var b strings.Builder
			for i := range n {
				fmt.Fprintf(&b, `%s:"10.%d.%d.%d/32" `, field, i>>16, i>>8&255, i&255)
			}
			return b.String()
		}
	}
	list := func(format string) func(int) string { return func(n int) string { return many(n, format) } }
	text := func(format string) func(int) string { return func(n int) string { return long(n, format) } }
	for _, c := range []struct {
		name, around string // what is tested goes where "…" is
		limit        int
		made         func(int) string
	}{
		{"allowed owners", `listener:{name:"x" addresses:":80" protocol:PROTOCOL_HTTP …}`, 100, list(`allowed_owners:"o%"`)},
		{"trusted proxies", `listener:{name:"x" addresses:":80" protocol:PROTOCOL_HTTP …}`, 256, networks("trusted_proxies")},
		{"certificates", `listener:{name:"x" addresses:":80" protocol:PROTOCOL_HTTPS tls:{…}}`, 100, list(`certificates:"c%"`)},
		{"backends", `pool:{name:"x" …}`, 1000, list(`backends:{address:"h%.example.com:80"}`)},
		{"check headers", `pool:{name:"x" discovery:{host:"a.example.com" port:80} health_check:{http:{…}}}`, 16, list(`headers:{key:"x-%" value:"1"}`)},
		{"expected body", `pool:{name:"x" discovery:{host:"a.example.com" port:80} health_check:{http:{…}}}`, 1024, text(`expect_body:"%"`)},
		{"expected status", `pool:{name:"x" discovery:{host:"a.example.com" port:80} health_check:{http:{…}}}`, 20, list(`expect_status:"200"`)},
		{"cookie", `pool:{name:"x" discovery:{host:"a.example.com" port:80} session_persistence:{…}}`, 64, text(`cookie:"%"`)},
		{"hosts", `route:{name:"x" listeners:"l" respond:{status:200} …}`, 100, list(`hosts:"h%.example.com"`)},
		{"matches", `route:{name:"x" listeners:"l" respond:{status:200} …}`, 100, list(`matches:{path:{exact:"/%"}}`)},
		{"methods", `route:{name:"x" listeners:"l" respond:{status:200} matches:{…}}`, 16, list(`methods:"M%"`)},
		{"headers", `route:{name:"x" listeners:"l" respond:{status:200} matches:{…}}`, 16, list(`headers:{name:"x-%"}`)},
		{"query", `route:{name:"x" listeners:"l" respond:{status:200} matches:{…}}`, 16, list(`query:{name:"x-%"}`)},
		{"regex", `route:{name:"x" listeners:"l" respond:{status:200} matches:{path:{…}}}`, 1024, func(n int) string { return long(n-1, `regex:"/%"`) }},
		{"header regex", `route:{name:"x" listeners:"l" respond:{status:200} matches:{headers:{name:"x" …}}}`, 1024, text(`regex:"%"`)},
		{"value", `route:{name:"x" listeners:"l" respond:{status:200} matches:{query:{name:"x" …}}}`, 8192, text(`exact:"%"`)},
		{"pools", `route:{name:"x" listeners:"l" forward:{…}}`, 16, list(`pools:{pool:"p%"}`)},
		{"policies", `route:{name:"x" listeners:"l" respond:{status:200} …}`, 16, list(`policies:"p%"`)},
		{"set", `route:{name:"x" listeners:"l" respond:{status:200} request_headers:{…}}`, 32, list(`set:{key:"x-%" value:"1"}`)},
		{"add", `route:{name:"x" listeners:"l" respond:{status:200} response_headers:{…}}`, 32, list(`add:{key:"x-%" value:"1"}`)},
		{"remove", `route:{name:"x" listeners:"l" respond:{status:200} response_headers:{…}}`, 32, list(`remove:"x-%"`)},
		{"error pages", `route:{name:"x" listeners:"l" respond:{status:200} …}`, 16, func(n int) string {
			var b strings.Builder
			for i := range n {
				fmt.Fprintf(&b, `error_pages:{status:"%d"} `, 400+i)
			}
			return b.String()
		}},
		{"error page", `route:{name:"x" listeners:"l" respond:{status:200} error_pages:{status:"5xx" …}}`, 65536, text(`body:"%"`)},
		{"bypass", `route:{name:"x" listeners:"l" respond:{status:200} maintenance:{…}}`, 256, networks("bypass")},
		{"allow", `policy:{name:"x" addresses:{…}}`, 1024, networks("allow")},
		{"deny", `policy:{name:"x" addresses:{…}}`, 1024, networks("deny")},
		{"allow lists", `policy:{name:"x" addresses:{…}}`, 16, list(`allow_lists:"l%"`)},
		{"address list", `address_list:{name:"x" …}`, 50_000, networks("addresses")},
	} {
		report := func(n int) string {
			r := new(lbdv1.Resource)
			if err := prototext.Unmarshal([]byte(strings.Replace(c.around, "…", c.made(n), 1)), r); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			return errorsOf(&raftv1.ChangeCommand{Owner: "web", Upserts: []*raftv1.StoredResource{{Resource: r}}})
		}
		if got := report(c.limit); got != "" {
			t.Errorf("%s: %d are refused: %s", c.name, c.limit, got)
		}
		if got := report(c.limit + 1); !strings.Contains(got, fmt.Sprintf("at most %d", c.limit)) {
			t.Errorf("%s: %d: %q", c.name, c.limit+1, got)
		}
	}
}

// errorsOf are the errors of a change that is judged alone.
func errorsOf(change *raftv1.ChangeCommand) string {
	var all []*lbdv1.Violation
	for _, v := range state.Validate(nil, change) {
		if v.GetSeverity() == lbdv1.Severity_SEVERITY_ERROR {
			all = append(all, v)
		}
	}
	return showViolations(all)
}
