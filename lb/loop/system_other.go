//go:build !linux

package loop

import "errors"

const bestKind = KindGoroutine

func newPollEngine(Options) (core, error) {
	return nil, errors.New("the epoll engine needs Linux")
}

// cpuQuota is 0: no quota is known here.
func cpuQuota() float64 { return 0 }

// outQueue is 0: how much the peer has acknowledged is not known here.
func outQueue(int) int { return 0 }

func describeInUse(err error, _ int) error { return err }
