package main

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	descReady     = desc("node_ready", "Whether this node takes traffic: 0 while it gives it up, and while it has.")
	descStale     = desc("stale_seconds", "How long ago this node was sure to have what the cluster has. +Inf: not since its start.")
	descOverrides = desc("overrides", "What operators have said of backends, and has not expired: on all nodes (replicated), on this one alone (node_local).", "kind")
)

// collectNode is what the node does with traffic, and how sure it is of what it knows.
func (c collector) collectNode(out chan<- prometheus.Metric) {
	ready := 0.0
	if c.a.traffic.get() == trafficReady {
		ready = 1
	}
	gauge(out, descReady, ready)

	stale := math.Inf(1)
	if age, ever := c.a.node.Fresh(); ever {
		stale = age.Seconds()
	}
	gauge(out, descStale, stale)
	now, replicated := time.Now(), 0
	for o := range c.a.node.State().Overrides("") {
		if end := o.GetExpireTime(); end == nil || end.AsTime().After(now) {
			replicated++
		}
	}
	gauge(out, descOverrides, float64(replicated), "replicated")
	gauge(out, descOverrides, float64(len(c.a.overlay.Overrides(""))), "node_local")
}
