package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"runtime"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lbdv1 "lbd/proto/lbd/v1"
)

// Profile implements rpc.Observer.
func (a *appliance) Profile(ctx context.Context, kind lbdv1.ProfileKind, d time.Duration) ([]byte, error) {
	var out bytes.Buffer
	switch kind {
	case lbdv1.ProfileKind_PROFILE_KIND_HEAP:
		runtime.GC() // what is live now, not at the last collection
		err := pprof.Lookup("heap").WriteTo(&out, 0)
		return out.Bytes(), err
	case lbdv1.ProfileKind_PROFILE_KIND_CPU:
		if err := pprof.StartCPUProfile(&out); err != nil {
			return nil, status.Error(codes.Unavailable, "another profile of the CPU is being taken: try again when it has ended")
		}
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		pprof.StopCPUProfile()
		return out.Bytes(), ctx.Err()
	}
	return nil, errors.New("no such kind of profile")
}

// Metrics implements rpc.Observer: what /metrics answers, too.
func (a *appliance) Metrics() (string, error) {
	ask, err := http.NewRequest(http.MethodGet, "/metrics", nil)
	if err != nil {
		return "", err
	}
	answer := text{header: http.Header{}}
	promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{}).ServeHTTP(&answer, ask)
	if answer.status != 0 && answer.status != http.StatusOK {
		return "", errors.New(strings.TrimSpace(answer.String()))
	}
	return answer.String(), nil
}

// text is an answer that nobody sends.
type text struct {
	strings.Builder
	header http.Header
	status int
}

func (t *text) Header() http.Header { return t.header }

func (t *text) WriteHeader(status int) { t.status = status }

func (a *appliance) newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), a.publishTimes, collector{a})
	return r
}
