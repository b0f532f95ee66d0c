package rpc

import (
	"net/netip"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
)

// failures counts failed authentication by source. It only changes what a failure is answered: a call with a valid credential
// never asks it, so that nobody is locked out by who shares his address.
type failures struct {
	mu      sync.Mutex
	sources map[netip.Prefix]*failureCount
}

// failureCount is a bucket that a failure takes one from, and that fills again with time.
type failureCount struct {
	left float64
	at   time.Time
}

// refuse is the answer to a failed authentication: the failure itself or, after too many from there, how long to wait.
func (f *failures) refuse(source string, now time.Time, failure error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	network := sourceNetwork(source)
	c, known := f.sources[network]
	if !known {
		f.makeRoomLocked(now)
		c = &failureCount{left: failuresBurst, at: now}
		f.sources[network] = c
	}
	if passed := now.Sub(c.at); passed > 0 {
		c.left = min(failuresBurst, c.left+passed.Seconds()/failuresInterval.Seconds())
		c.at = now
	}
	if c.left >= 1 {
		c.left--
		return failure
	}
	return withDetails(codes.ResourceExhausted, reasonLimited, "too many failed logins from this address: wait before the next one",
		&errdetails.RetryInfo{RetryDelay: durationpb.New(failuresInterval)})
}

// limited tells whether a source has failed too often, and is not answered the cause any more.
func (f *failures) limited(source string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, known := f.sources[sourceNetwork(source)]
	return known && c.left+max(now.Sub(c.at).Seconds(), 0)/failuresInterval.Seconds() < 1
}

// makeRoomLocked forgets sources that are as good as new and, where that is not enough, any: they begin anew.
func (f *failures) makeRoomLocked(now time.Time) {
	if len(f.sources) < failureSourcesMax {
		return
	}
	full := time.Duration(failuresBurst) * failuresInterval
	for network, c := range f.sources {
		if now.Sub(c.at) >= full {
			delete(f.sources, network)
		}
	}
	for network := range f.sources {
		if len(f.sources) < failureSourcesMax {
			return
		}
		delete(f.sources, network)
	}
}
