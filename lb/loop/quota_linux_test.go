package loop

import "testing"

func TestQuota(t *testing.T) {
	files := map[string]string{
		"/sys/fs/cgroup/a/b/cpu.max":             "max 100000\n",
		"/sys/fs/cgroup/a/cpu.max":               "150000 100000\n",
		"/sys/fs/cgroup/cpu.max":                 "800000 100000\n",
		"/sys/fs/cgroup/cpu/c/cpu.cfs_quota_us":  "50000\n",
		"/sys/fs/cgroup/cpu/c/cpu.cfs_period_us": "100000\n",
		"/sys/fs/cgroup/cpu/cpu.cfs_quota_us":    "-1\n",
		"/sys/fs/cgroup/cpu/cpu.cfs_period_us":   "100000\n",
	}
	read := func(name string) string { return files[name] }
	for groups, want := range map[string]float64{
		"":                          0,
		"nonsense\n":                0,
		"0::/a/b\n":                 1.5, // the tightest on the way up
		"0::/\n":                    8,
		"0::/elsewhere/c\n":         8,
		"4:memory:/c\n":             0,
		"2:cpu:/c\n":                0.5,
		"2:cpu:/\n":                 0,
		"9:cpuset,cpu:/c/d\n0::/\n": 0.5,
	} {
		if got := quotaOf(groups, read); got != want {
			t.Errorf("%q: %v, want %v", groups, got, want)
		}
	}
}
