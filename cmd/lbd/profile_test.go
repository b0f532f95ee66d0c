package main

import (
	"bytes"
	"context"
	"errors"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lbdv1 "lbd/proto/lbd/v1"
)

func TestProfile(t *testing.T) {
	r := newRig(t)
	const cpu, heap = lbdv1.ProfileKind_PROFILE_KIND_CPU, lbdv1.ProfileKind_PROFILE_KIND_HEAP
	gzipped := func(data []byte, err error) {
		t.Helper()
		if err != nil || !bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
			t.Errorf("%d bytes, %v", len(data), err)
		}
	}
	gzipped(r.Profile(t.Context(), heap, 0))
	gzipped(r.Profile(t.Context(), cpu, time.Millisecond))

	var other bytes.Buffer
	if err := pprof.StartCPUProfile(&other); err != nil {
		t.Fatal(err)
	}
	_, err := r.Profile(t.Context(), cpu, time.Millisecond)
	pprof.StopCPUProfile()
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "try again") {
		t.Errorf("two at once: %v", err)
	}

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Profile(gone, cpu, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("a client that has gone: %v", err)
	}
	gzipped(r.Profile(t.Context(), cpu, time.Millisecond)) // and the next one can be taken
}
