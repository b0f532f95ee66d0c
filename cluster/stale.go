//go:build !lbdstale

package cluster

const staleReads = false
