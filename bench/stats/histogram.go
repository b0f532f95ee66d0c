// Package stats holds the arithmetic of the lab: latency histograms, medians with their spread, and paired ratios.
package stats

import (
	"math/bits"
	"time"
)

// A duration falls into one of subBuckets equal parts of its power of two, so a percentile is at most 1/32 too high.
const (
	subBits    = 5
	subBuckets = 1 << subBits
	buckets    = (64 - subBits + 1) * subBuckets
)

// Histogram counts durations with a relative error of at most 3.2 %. Adding neither allocates nor looks at the clock. The zero
// value is empty and ready.
type Histogram struct {
	counts [buckets]uint64
	total  uint64
	sum    time.Duration
	max    time.Duration
}

// Add counts one duration. A negative one counts as zero.
func (h *Histogram) Add(d time.Duration) {
	d = max(d, 0)
	h.counts[bucket(uint64(d))]++
	h.total++
	h.sum += d
	h.max = max(h.max, d)
}

// Count is the number of durations added.
func (h *Histogram) Count() uint64 { return h.total }

// Max is the longest duration added, exactly.
func (h *Histogram) Max() time.Duration { return h.max }

// Mean is the exact mean, zero for an empty histogram.
func (h *Histogram) Mean() time.Duration {
	if h.total == 0 {
		return 0
	}
	return h.sum / time.Duration(h.total)
}

// Quantile returns a duration that at least the share q (0 to 1) of all durations do not exceed: the upper edge of the bucket,
// and never more than Max. Zero for an empty histogram.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.total == 0 {
		return 0
	}
	rank := uint64(q*float64(h.total) + 0.9999999)
	rank = min(max(rank, 1), h.total)
	seen := uint64(0)
	for i, n := range h.counts {
		seen += n
		if seen >= rank {
			return min(time.Duration(upperEdge(i)), h.max)
		}
	}
	return h.max
}

// bucket gives values below subBuckets a bucket each, and every larger power of two subBuckets of them.
func bucket(v uint64) int {
	if v < subBuckets {
		return int(v)
	}
	shift := bits.Len64(v) - subBits - 1
	return (shift+1)<<subBits + int(v>>shift) - subBuckets
}

// upperEdge is the largest value of bucket i.
func upperEdge(i int) uint64 {
	if i < subBuckets {
		return uint64(i)
	}
	shift := i>>subBits - 1
	return (uint64(i&(subBuckets-1)+subBuckets)+1)<<shift - 1
}

// Latency is what a report says of a histogram. All values are seconds.
type Latency struct {
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	P9999 float64 `json:"p9999"`
	Max   float64 `json:"max"`
}

// Summary reduces the histogram to its report.
func (h *Histogram) Summary() Latency {
	return Latency{
		Mean:  h.Mean().Seconds(),
		P50:   h.Quantile(0.5).Seconds(),
		P90:   h.Quantile(0.9).Seconds(),
		P99:   h.Quantile(0.99).Seconds(),
		P999:  h.Quantile(0.999).Seconds(),
		P9999: h.Quantile(0.9999).Seconds(),
		Max:   h.Max().Seconds(),
	}
}
