package tlsterm

import (
	"bytes"
	"crypto/tls"
	"testing"
	"time"

	"lbd/tls/tlstest"
)

func testTicket() *ticket {
	return &ticket{
		epoch: 7, node: 3, issued: time.UnixMilli(1_700_000_000_123), clientPolicy: [32]byte{9}, serverName: "shop.example", listener: "https", session: []byte("session"),
	}
}

func TestTicket(t *testing.T) {
	key := &TicketKey{Epoch: 7, Name: [16]byte{5}, Secret: [32]byte{6}}
	want := testTicket()
	sealed, err := want.seal(key)
	if err != nil {
		t.Fatal(err)
	}
	if name, ok := ticketKeyName(sealed); !ok || name != key.Name || bytes.Contains(sealed, []byte("shop.example")) {
		t.Errorf("it shows %x", sealed)
	}
	before := bytes.Clone(sealed)
	got, err := openTicket(key, sealed)
	if err != nil || got.epoch != want.epoch || got.node != want.node || !got.issued.Equal(want.issued) || got.clientPolicy != want.clientPolicy ||
		got.serverName != want.serverName || got.listener != want.listener || !bytes.Equal(got.session, want.session) {
		t.Errorf("%+v, %v", got, err)
	}
	if !bytes.Equal(sealed, before) {
		t.Error("opening it changed it")
	}
	again, err := want.seal(key)
	if err != nil || bytes.Equal(again[16:48], sealed[16:48]) {
		t.Errorf("two are alike: %v", err)
	}
	for i := range sealed {
		damaged := bytes.Clone(sealed)
		damaged[i] ^= 1
		if _, err := openTicket(key, damaged); err != errTicketDamaged {
			t.Fatalf("byte %d changed: %v", i, err)
		}
		if _, err := openTicket(key, sealed[:i]); err != errTicketDamaged {
			t.Fatalf("%d bytes of it: %v", i, err)
		}
	}
	if _, err := openTicket(&TicketKey{Epoch: 7, Name: key.Name, Secret: [32]byte{7}}, sealed); err != errTicketDamaged {
		t.Errorf("another secret: %v", err)
	}
}

// FuzzParseTicket: contents of any build are read or refused, and what is read says the same when it is written again.
func FuzzParseTicket(f *testing.F) {
	f.Add([]byte{})
	f.Add(append([]byte{ticketFormat}, make([]byte, ticketFixedBytes+8)...))
	f.Add(append([]byte{ticketFormat + 1}, make([]byte, ticketFixedBytes+8)...))
	key := &TicketKey{Epoch: 1}
	f.Fuzz(func(t *testing.T, b []byte) {
		parsed, err := parseTicket(b)
		if err != nil {
			return
		}
		sealed, err := parsed.seal(key)
		if err != nil {
			t.Fatal(err)
		}
		again, err := openTicket(key, sealed)
		if err != nil || again.serverName != parsed.serverName || again.listener != parsed.listener || !bytes.Equal(again.session, parsed.session) ||
			again.issued.UnixMilli() != parsed.issued.UnixMilli() {
			t.Errorf("%+v, %v; read %+v", again, err, parsed)
		}
	})
}

// TestResumptionOnAnotherNode: by the keys alone, and what is said of each handshake.
func TestResumptionOnAnotherNode(t *testing.T) {
	ca := tlstest.NewCA(t)
	pair := ca.ECDSA("a.org", "b.org")
	keys := func(node uint64, epoch byte, accept ...TicketKey) *TicketKeys {
		return NewTicketKeys(node, &TicketKey{Epoch: uint64(epoch), Name: [16]byte{epoch}, Secret: [32]byte{epoch}}, accept, nil)
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		first, second := terminator(t, Policy{}, certificate(t, "a", pair)), terminator(t, Policy{}, certificate(t, "a", pair))
		second.tickets.Replace(keys(2, 1))
		config := client(ca.Pool(), "a.org")
		config.MaxVersion, config.ClientSessionCache = version, tls.NewLRUClientSessionCache(1)
		expect := func(at *Terminator, word string) {
			t.Helper()
			before := map[string]uint64{}
			for _, line := range at.Resumptions() {
				before[line.Result] = line.Count
			}
			mustDial(t, at, config)
			for _, line := range at.Resumptions() {
				want := before[line.Result]
				if line.Result == word {
					want++
				}
				if line.Count != want {
					t.Errorf("%s: %s is %d, want %d", tls.VersionName(version), line.Result, line.Count, want)
				}
			}
		}
		expect(first, "miss_no_ticket")
		expect(first, "hit_local")
		expect(second, "hit_peer")
		expect(first, "hit_peer")
		second.tickets.Replace(keys(2, 2))
		expect(second, "miss_unknown_key")
		first.tickets.Replace(keys(1, 1, TicketKey{Epoch: 2, Name: [16]byte{2}, Secret: [32]byte{2}})) // staged here, active there
		expect(first, "hit_peer")
		first.tickets.Replace(keys(1, 2, TicketKey{Epoch: 1, Name: [16]byte{1}, Secret: [32]byte{1}, Until: time.Now().Add(-time.Second)}))
		expect(first, "miss_expired")
		buckets, sum := first.TicketAges()
		total := uint64(0)
		for _, n := range buckets {
			total += n
		}
		if total != 3 || sum < 0 {
			t.Errorf("%d tickets of an age, %v in all", total, sum)
		}
	}
}

// TestTicketOfAnotherName (CVE-2025-23419, nginx issue 493): a ticket is good for the name, the listener and the demands on clients under which it was given.
func TestTicketOfAnotherName(t *testing.T) {
	ca := tlstest.NewCA(t)
	term := terminator(t, Policy{}, certificate(t, "a", ca.ECDSA("a.org", "b.org")))
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		cache := tls.NewLRUClientSessionCache(8)
		config := func(name string) *tls.Config {
			c := client(ca.Pool(), name)
			c.MaxVersion, c.ClientSessionCache = version, oneSession{cache}
			return c
		}
		mustDial(t, term, config("a.org"))
		if mustDial(t, term, config("b.org")).DidResume {
			t.Errorf("%s: a ticket of a.org resumed as b.org", tls.VersionName(version))
		}
		if !mustDial(t, term, config("b.org")).DidResume {
			t.Errorf("%s: one of b.org did not", tls.VersionName(version))
		}
	}
}

// oneSession gives every server name the same session.
type oneSession struct{ tls.ClientSessionCache }

func (o oneSession) Get(string) (*tls.ClientSessionState, bool) { return o.ClientSessionCache.Get("") }
func (o oneSession) Put(_ string, session *tls.ClientSessionState) {
	o.ClientSessionCache.Put("", session)
}
