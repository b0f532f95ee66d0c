package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	tlsterm "lbd/tls"
)

var (
	descResumption  = desc("tls_resumption_total", "Complete TLS handshakes by what became of the client's session: resumed by a ticket of this node, of another one, or why not.", "result")
	descTicketUsed  = desc("tls_ticket_age_seconds", "How old the tickets were by which clients resumed.")
	descTicketEpoch = desc("ticket_key_epoch", "The epoch that this node issues session tickets under; 0: none.")
	descTicketAge   = desc("ticket_key_age_seconds", "For how long that key has issued.")
	descTicketLate  = desc("ticket_keys_late", "Whether the key issues for longer than ticket_keys.interval, as without a leader, or is too old to issue.")
)

// collectTickets is how this node is with the ticket keys.
func (c collector) collectTickets(out chan<- prometheus.Metric) {
	for _, line := range c.a.terminator.Resumptions() {
		counter(out, descResumption, int64(line.Count), line.Result)
	}
	buckets, sum := c.a.terminator.TicketAges()
	total, bounds := uint64(0), map[float64]uint64{}
	for i, n := range buckets {
		total += n
		if i < len(tlsterm.TicketAgeBounds) {
			bounds[tlsterm.TicketAgeBounds[i].Seconds()] = total
		}
	}
	out <- prometheus.MustNewConstHistogram(descTicketUsed, total, sum.Seconds(), bounds)
	keys := c.a.TicketKeys()
	gauge(out, descTicketEpoch, float64(keys.GetEpoch()))
	gauge(out, descTicketAge, keys.GetAge().AsDuration().Seconds())
	gauge(out, descTicketLate, truth(c.a.ticketKeys.served.Load().lateness(time.Now()) != ""))
}
