//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
)

// A short period lets a proxy at its quota stop for milliseconds and not for a tenth of a second. The kernel takes no quota under a millisecond.
const (
	quotaPeriodMin = 10_000 // microseconds
	quotaMin       = 1_000
)

var quotas atomic.Int64 // made so far, for their names

// newQuota makes a control group that may use the given share of one core, in the old (v1) or the new hierarchy. The returned function
// removes it, when it is empty.
func newQuota(share float64) (folder string, remove func(), err error) {
	name := fmt.Sprintf("lbd-lab-%d-%d", os.Getpid(), quotas.Add(1))
	period := max(quotaPeriodMin, int(quotaMin/share))
	micros := max(quotaMin, int(share*float64(period)))
	v1, v2 := filepath.Join("/sys/fs/cgroup/cpu", name), filepath.Join("/sys/fs/cgroup", name)
	settings := [][2]string{{"cpu.cfs_period_us", strconv.Itoa(period)}, {"cpu.cfs_quota_us", strconv.Itoa(micros)}}
	folder = v1
	if os.Mkdir(v1, 0o755) != nil {
		settings = [][2]string{{"cpu.max", fmt.Sprintf("%d %d", micros, period)}}
		folder = v2
		if err := os.Mkdir(v2, 0o755); err != nil {
			return "", nil, fmt.Errorf("no control group for a CPU quota: %w", err)
		}
	}
	for _, s := range settings {
		if err := set(filepath.Join(folder, s[0]), s[1]); err != nil {
			return "", nil, fmt.Errorf("set a CPU quota: %w", errors.Join(err, os.Remove(folder)))
		}
	}
	return folder, func() { _ = os.Remove(folder) }, nil
}

// quotaProblem says why this machine gives no CPU quota, or nothing.
func quotaProblem() error {
	_, remove, err := newQuota(1)
	if err == nil {
		remove()
	}
	return err
}

// set writes a control file. It never makes one: where it is not, there is no controller.
func set(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
