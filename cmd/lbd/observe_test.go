package main

import (
	"testing"
	"time"

	"lbd/health"
	"lbd/lb"
	lbdv1 "lbd/proto/lbd/v1"
)

// TestLastError: the later of what checks and requests have met is shown, but of a backend that is down the check's.
func TestLastError(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	check := func(state health.State, text string, second int) health.Status {
		return health.Status{State: state, LastError: text, LastErrorTime: at(second)}
	}
	tried := func(text string, second int) lb.PoolBackendStats {
		return lb.PoolBackendStats{LastFailure: text, LastFailureTime: at(second)}
	}
	for _, tc := range []struct {
		check health.Status
		tried lb.PoolBackendStats
		text  string
		at    time.Time
	}{
		{health.Status{}, lb.PoolBackendStats{}, "", time.Time{}},
		{health.Status{}, tried("status 500", 3), "status 500", at(3)},
		{check(health.Up, "timeout", 2), lb.PoolBackendStats{}, "timeout", at(2)},
		{check(health.Up, "timeout", 2), tried("status 500", 3), "status 500", at(3)},
		{check(health.Up, "timeout", 4), tried("status 500", 3), "timeout", at(4)},
		{check(health.Down, "timeout", 2), tried("status 500", 3), "timeout", at(2)},
	} {
		if text, when := lastError(tc.check, tc.tried); text != tc.text || !when.Equal(tc.at) {
			t.Errorf("%+v, %+v: %s at %v", tc.check, tc.tried, text, when)
		}
	}
}

// TestBackendErrorTime: a request that finds nobody shows in the backend's status, with its time; there is no ejection to end.
func TestBackendErrorTime(t *testing.T) {
	r := newRig(t)
	began := time.Now()
	address := free(t)
	r.propose(&lbdv1.Pool{Name: "p", Backends: []*lbdv1.Backend{{Address: address}, {Address: "never.invalid:80"}}},
		&lbdv1.Route{Name: "default", Listeners: []string{"http"}, Action: &lbdv1.Route_Forward{Forward: &lbdv1.Forward{Pools: []*lbdv1.ForwardPool{{Pool: "p"}}}}})
	r.publish()
	r.serves("http://"+r.address("http")+"/", 502)
	for _, b := range r.Backends("p") {
		want := "resolve: "
		if b.GetAddress() == address {
			want = "connect: connection refused"
		}
		switch when := b.GetLastErrorTime().AsTime(); {
		case len(b.GetLastError()) < len(want) || b.GetLastError()[:len(want)] != want:
			t.Errorf("%s: last error %q", b.GetAddress(), b.GetLastError())
		case b.GetLastErrorTime() == nil && b.GetLastError() != "resolve: no answer yet", b.GetLastErrorTime() != nil && when.Before(began.Add(-time.Minute)):
			t.Errorf("%s: its time is %v", b.GetAddress(), when)
		}
	}
	if r.EndEjection("p", address) || r.EndEjection("p", "10.9.9.9:80") || r.EndEjection("none", address) {
		t.Error("an ejection was ended that there is not")
	}
}
