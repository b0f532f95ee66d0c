package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	descTicketEpoch = desc("ticket_key_epoch", "The epoch that this node issues session tickets under; 0: none.")
	descTicketAge   = desc("ticket_key_age_seconds", "For how long that key has issued.")
	descTicketLate  = desc("ticket_keys_late", "Whether the key issues for longer than ticket_keys.interval, as without a leader, or is too old to issue.")
)

// collectTickets is how this node is with the ticket keys.
func (c collector) collectTickets(out chan<- prometheus.Metric) {
	keys := c.a.TicketKeys()
	gauge(out, descTicketEpoch, float64(keys.GetEpoch()))
	gauge(out, descTicketAge, keys.GetAge().AsDuration().Seconds())
	gauge(out, descTicketLate, truth(c.a.ticketKeys.served.Load().lateness(time.Now()) != ""))
}
