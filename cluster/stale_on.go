//go:build lbdstale

package cluster

// staleReads makes every ReadBarrier a lie: a test shows that its absence is noticed.
const staleReads = true
