package tlsterm

import (
	"testing"
	"time"
)

func ticketKeyNamed(name byte, until time.Time) TicketKey {
	return TicketKey{Epoch: uint64(name), Name: [16]byte{name}, Secret: [32]byte{name}, Until: until}
}

func TestTicketKeysByNameAndTime(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	issue := ticketKeyNamed(2, now.Add(time.Hour))
	keys := NewTicketKeys(7, &issue, []TicketKey{ticketKeyNamed(1, now.Add(time.Minute)), ticketKeyNamed(3, time.Time{})},
		[]ForeignKey{{Name: [16]byte{9}, Secret: make([]byte, 32), Until: now.Add(time.Minute)}})
	for _, c := range []struct {
		after                    time.Duration
		issuing                  bool
		first, own, last, others bool
	}{
		{0, true, true, true, true, true},
		{time.Minute - 1, true, true, true, true, true},
		{time.Minute, true, false, true, true, false},
		{time.Hour, false, false, false, true, false}, // the last key of a node that hears of no other
	} {
		at := now.Add(c.after)
		found := func(name byte) bool { return keys.Find([16]byte{name}, at) != nil }
		if (keys.Issuing(at) != nil) != c.issuing || found(1) != c.first || found(2) != c.own || found(3) != c.last || found(9) {
			t.Errorf("%s later: issuing %v, found %t %t %t", c.after, keys.Issuing(at), found(1), found(2), found(3))
		}
		if (keys.FindForeign([16]byte{9}, at) != nil) != c.others || keys.FindForeign([16]byte{1}, at) != nil {
			t.Errorf("%s later: the other tier's key is found: %t", c.after, !c.others)
		}
	}
	if keys.Node() != 7 {
		t.Errorf("node %d", keys.Node())
	}
}

func TestTicketsAreReplaced(t *testing.T) {
	tickets := NewTickets()
	if tickets.Current().Issuing(time.Now()) != nil {
		t.Error("tickets are issued without a key")
	}
	key := ticketKeyNamed(1, time.Time{})
	tickets.Replace(NewTicketKeys(1, &key, nil, nil))
	key.Secret[0] = 99
	if got := tickets.Current().Issuing(time.Now()); got == nil || got.Secret[0] != 1 {
		t.Errorf("issuing under %v", got)
	}
}
