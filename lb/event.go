package lb

import (
	"fmt"
	"time"
)

// EventType is what has happened. The words are part of the API, and stay.
type EventType string

// The types of events.
const (
	BackendEjected  EventType = "backend_ejected"
	BackendRestored EventType = "backend_restored"
	FailOpenBegun   EventType = "fail_open"
	FailOpenEnded   EventType = "fail_open_ended"
)

// Event is something that this package has decided by itself and an operator wants to know.
type Event struct {
	Time    time.Time
	Type    EventType
	Pool    string
	Backend string // its name; empty: the whole pool
	Message string // in words
}

// tell hands an event of one member on. The caller holds Server.mu.
func (p *Pool) tell(now time.Time, kind EventType, m *member, message string) {
	if on := p.server.options.OnEvent; on != nil {
		on(Event{Time: now, Type: kind, Pool: p.name, Backend: m.backend.name, Message: message})
	}
}

func (p *Pool) tellFailOpen(now time.Time, begun bool) {
	e := Event{Time: now, Type: FailOpenEnded, Pool: p.name, Message: fmt.Sprintf("%d %% of its backends are eligible again", p.failOpen)}
	if p.failOpen == 0 {
		e.Message = "it fails open no more"
	}
	if begun {
		e.Type = FailOpenBegun
		e.Message = fmt.Sprintf("less than %d %% of its backends are eligible: all take requests", p.failOpen)
	}
	if on := p.server.options.OnEvent; on != nil {
		on(e)
	}
}
