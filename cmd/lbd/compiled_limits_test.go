package main

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"lbd/lb"
	lbdv1 "lbd/proto/lbd/v1"
)

func within(d time.Duration) *lbdv1.Timeout {
	return &lbdv1.Timeout{Limit: &lbdv1.Timeout_Duration{Duration: durationpb.New(d)}}
}

func disabled() *lbdv1.Timeout {
	return &lbdv1.Timeout{Limit: &lbdv1.Timeout_Disabled{Disabled: true}}
}

// TestCompileLimits: each field of a listener ends in the place that is meant.
func TestCompileLimits(t *testing.T) {
	got := compiledListener(t, stored(t, 1, &lbdv1.Listener{
		Name: "http", Addresses: []string{":80"}, Protocol: lbdv1.Protocol_PROTOCOL_HTTP,
		Timeouts: &lbdv1.ListenerTimeouts{
			Handshake: durationpb.New(1 * time.Second), RequestHead: durationpb.New(2 * time.Second),
			KeepAliveIdle: durationpb.New(3 * time.Second), WriteStall: durationpb.New(4 * time.Second),
		},
		Limits:         &lbdv1.ListenerLimits{Connections: 5, RequestsPerConnection: 6, ConnectionAge: within(7 * time.Second), HeadBytes: 8192, Fields: 90},
		TrustedProxies: []string{"10.0.0.0/8", "10.1.2.3/32"}, Forwarded: true, AllowUnderscores: true, HealthPath: "/ready",
	}), "").config
	want := lb.ListenerConfig{
		Name: "http", Addresses: []string{":80"},
		Timeouts: lb.Timeouts{Handshake: 1 * time.Second, RequestHead: 2 * time.Second, KeepAliveIdle: 3 * time.Second, WriteStall: 4 * time.Second},
		Limits:   lb.Limits{Connections: 5, Requests: 6, ConnectionAge: 7 * time.Second, HeadBytes: 8192, Fields: 90},
		Trusted:  []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.1.2.3/32")}, Forwarded: true, Underscores: true, HealthPath: "/ready",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("compiled\n%+v, want\n%+v", got, want)
	}
	bare := compiledListener(t, stored(t, 1, &lbdv1.Listener{Name: "http"}), "").config
	if bare.Timeouts != (lb.Timeouts{}) || bare.Limits != (lb.Limits{}) || bare.Trusted != nil {
		t.Errorf("what is left out is not the default: %+v", bare)
	}
	off := compiledListener(t, stored(t, 1, &lbdv1.Listener{Name: "http", Limits: &lbdv1.ListenerLimits{ConnectionAge: disabled()}}), "").config
	if off.Limits.ConnectionAge != lb.Off {
		t.Errorf("disabled is %v", off.Limits.ConnectionAge)
	}
}

func TestCompileForward(t *testing.T) {
	forward := func(timeouts *lbdv1.ForwardTimeouts, retry *lbdv1.Retry) *lb.Forward {
		f := &lbdv1.Forward{Pools: []*lbdv1.ForwardPool{{Pool: "p"}}, Timeouts: timeouts, Retry: retry}
		return compiledRoute(t, stored(t, 1, &lbdv1.Route{Name: "r", Action: &lbdv1.Route_Forward{Forward: f}})).config.Forward
	}
	if got := forward(nil, nil); !reflect.DeepEqual(got, &lb.Forward{Pools: []lb.WeightedPool{{Pool: "p", Weight: 1}}}) {
		t.Errorf("left out: %+v", got)
	}
	got := forward(&lbdv1.ForwardTimeouts{
		FirstByte: within(1 * time.Second), BodyIdle: within(2 * time.Second), Request: within(3 * time.Second), Tunnel: within(4 * time.Second),
	}, &lbdv1.Retry{
		Attempts: proto.Int32(2), NonIdempotent: true, PerTryTimeout: durationpb.New(5 * time.Second), BudgetPercent: 30,
		On: []lbdv1.RetryCause{lbdv1.RetryCause_RETRY_CAUSE_FIRST_BYTE_TIMEOUT, lbdv1.RetryCause_RETRY_CAUSE_STATUS_5XX},
	})
	want := &lb.Forward{
		Pools: []lb.WeightedPool{{Pool: "p", Weight: 1}},
		Timeouts: lb.RouteTimeouts{
			FirstByte: 1 * time.Second, BodyIdle: 2 * time.Second, Request: 3 * time.Second, Tunnel: 4 * time.Second, Try: 5 * time.Second,
		},
		Retry: lb.Retry{Attempts: 2, NonIdempotent: true, BudgetPercent: 30, On: lb.OnFirstByteTimeout | lb.OnStatus5xx},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("compiled\n%+v, want\n%+v", got, want)
	}
	off := forward(&lbdv1.ForwardTimeouts{FirstByte: disabled(), BodyIdle: disabled(), Request: disabled(), Tunnel: disabled()}, &lbdv1.Retry{Attempts: proto.Int32(0)})
	if off.Timeouts != (lb.RouteTimeouts{FirstByte: lb.Off, BodyIdle: lb.Off, Request: lb.Off, Tunnel: lb.Off}) || off.Retry.Attempts >= 0 {
		t.Errorf("switched off: %+v", off)
	}
	for number, word := range lbdv1.RetryCause_name {
		if number != 0 && retryCauses[lbdv1.RetryCause(number)] == 0 {
			t.Errorf("%s has no counterpart", word)
		}
	}
}

// TestCompilePolicies: a policy changes what its routes do, though they stay the same.
func TestCompilePolicies(t *testing.T) {
	c := newCompiled()
	c.routes["r"] = compiledRoute(t, stored(t, 1, &lbdv1.Route{
		Name: "r", Policies: []string{"a", "b"}, AllowEncodedSlash: true,
		Action: &lbdv1.Route_Respond{Respond: &lbdv1.Respond{Status: 200}},
	}))
	limit := func(name string, bytes int64) {
		p := &lbdv1.Policy{Name: name, Rule: &lbdv1.Policy_BodySize{BodySize: &lbdv1.BodySize{MaxBytes: bytes}}}
		c.policies[name] = compilePolicy(stored(t, 1, p), routePolicy{})
	}
	check := func(want int64) {
		t.Helper()
		if got := c.oldestFirst()[0]; got.BodyBytesMax != want || !got.EncodedSlash {
			t.Errorf("served %+v, want %d", got, want)
		}
	}
	check(0)
	limit("a", 100)
	check(100)
	limit("b", 10)
	check(10)
	limit("b", 1000)
	check(100)
	limit("other", 1)
	check(100)
}

func TestCompileConnectTimeout(t *testing.T) {
	p := compilePool(stored(t, 1, &lbdv1.Pool{Name: "p", ConnectTimeout: durationpb.New(time.Second)}))
	if got := p.config.ConnectTimeout; got != time.Second {
		t.Errorf("connect timeout %v", got)
	}
}
