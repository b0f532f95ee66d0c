package loop

import (
	"os"
	"path"
	"strconv"
	"strings"
)

// cpuQuota is the number of cores that control groups (both versions) grant the
// process, 0 if they set no bound. The tightest group on the way up counts.
func cpuQuota() float64 {
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0
	}
	return quotaOf(string(groups), func(name string) string {
		b, _ := os.ReadFile(name)
		return string(b)
	})
}

// quotaOf reads lines of the form hierarchy:controllers:path.
func quotaOf(groups string, read func(name string) string) float64 {
	tightest := 0.0
	for line := range strings.Lines(groups) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		for dir := path.Clean("/" + f[2]); ; dir = path.Dir(dir) {
			q := 0.0
			switch {
			case f[1] == "":
				q = quotaV2(read(path.Join("/sys/fs/cgroup", dir, "cpu.max")))
			case hasController(f[1], "cpu"):
				base := path.Join("/sys/fs/cgroup/cpu", dir)
				q = ratio(read(base+"/cpu.cfs_quota_us"), read(base+"/cpu.cfs_period_us"))
			}
			if q > 0 && (tightest == 0 || q < tightest) {
				tightest = q
			}
			if dir == "/" {
				break
			}
		}
	}
	return tightest
}

func hasController(list, name string) bool {
	for c := range strings.SplitSeq(list, ",") {
		if c == name {
			return true
		}
	}
	return false
}

// quotaV2 reads "quota period" or "max period".
func quotaV2(s string) float64 {
	f := strings.Fields(s)
	if len(f) != 2 {
		return 0
	}
	return ratio(f[0], f[1])
}

func ratio(quota, period string) float64 {
	q, err1 := strconv.ParseFloat(strings.TrimSpace(quota), 64)
	p, err2 := strconv.ParseFloat(strings.TrimSpace(period), 64)
	if err1 != nil || err2 != nil || q <= 0 || p <= 0 {
		return 0
	}
	return q / p
}
