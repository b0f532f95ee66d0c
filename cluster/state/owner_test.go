package state

import (
	"net/netip"
	"testing"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

func changeOf(r *lbdv1.Resource) *raftv1.Command {
	change := &raftv1.ChangeCommand{Owner: "web", Upserts: []*raftv1.StoredResource{{Resource: r}}}
	return &raftv1.Command{Kind: &raftv1.Command_Change{Change: change}}
}

func testBounds(t *testing.T, o *lbdv1.Owner) Bounds {
	t.Helper()
	s, res := New("c").Apply(changeOf(wrapped(t, o)))
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	b, ok := s.BoundsOf(o.GetName())
	if !ok {
		t.Fatalf("owner %s has no bounds", o.GetName())
	}
	return b
}

func TestBoundsOfHosts(t *testing.T) {
	b := testBounds(t, &lbdv1.Owner{Name: "shop", AllowedHosts: []string{"Shop.Example.com", "*.shop.example.com", "192.0.2.7"}})
	for host, want := range map[string]bool{
		"shop.example.com":      true,
		"a.shop.example.com":    true,
		"b.a.shop.example.com":  true,
		"*.shop.example.com":    true,
		"*.a.shop.example.com":  true,
		"192.0.2.7":             true,
		"*.example.com":         false,
		"example.com":           false,
		"myshop.example.com":    false,
		"shop.example.com.evil": false,
		".shop.example.com":     false,
		"192.0.2.8":             false,
		"":                      false,
	} {
		if got := b.AllowsHost(host); got != want {
			t.Errorf("host %q: allowed %t, want %t", host, got, want)
		}
	}
	if !testBounds(t, &lbdv1.Owner{Name: "all", AllowedHosts: []string{"*"}}).AllowsHost("") {
		t.Error("`*` does not allow a route without hosts")
	}
	if testBounds(t, &lbdv1.Owner{Name: "none"}).AllowsHost("a.example.com") {
		t.Error("no bounds at all allow a host")
	}
	if _, ok := New("c").BoundsOf("shop"); ok {
		t.Error("an owner that nobody has bounded has bounds")
	}
}

func TestBoundsOfBackends(t *testing.T) {
	b := testBounds(t, &lbdv1.Owner{Name: "shop", AllowedBackendCidrs: []string{"10.1.0.0/16", "2001:db8::/32", "192.0.2.7"}})
	for ip, want := range map[string]bool{
		"10.1.255.255":      true,
		"::ffff:10.1.0.1":   true,
		"2001:db8::1":       true,
		"2001:db8::1%eth0":  true,
		"192.0.2.7":         true,
		"10.2.0.0":          false,
		"192.0.2.8":         false,
		"2001:db9::1":       false,
		"::10.1.0.1":        false,
		"::ffff:10.2.0.1":   false,
		"64:ff9b::10.1.0.1": false,
	} {
		if got := b.AllowsBackend(netip.MustParseAddr(ip)); got != want {
			t.Errorf("backend at %s: allowed %t, want %t", ip, got, want)
		}
	}
}

func TestBoundsOfListeners(t *testing.T) {
	b := testBounds(t, &lbdv1.Owner{Name: "shop", AllowedListenerAddresses: []string{":8443", "192.0.2.7:443", "[2001:DB8::1]:443"}})
	for address, want := range map[string]bool{
		":8443":             true,
		"192.0.2.9:8443":    true,
		"[::]:8443":         true,
		"192.0.2.7:443":     true,
		"[2001:db8::1]:443": true,
		"192.0.2.8:443":     false,
		":443":              false,
		"0.0.0.0:443":       false,
		"192.0.2.7:18443":   false,
		"8443":              false,
	} {
		if got := b.AllowsListener(address); got != want {
			t.Errorf("listener at %s: allowed %t, want %t", address, got, want)
		}
	}
	if !testBounds(t, &lbdv1.Owner{Name: "all", AllowedListenerAddresses: []string{"*"}}).AllowsListener(":1") {
		t.Error("`*` does not allow any address")
	}
	if testBounds(t, &lbdv1.Owner{Name: "none"}).AllowsListener(":1") {
		t.Error("no bounds at all allow a listener")
	}
}

// TestForbiddenBackends: whatever the spelling, a pool does not reach this machine, its link or no machine at all.
func TestForbiddenBackends(t *testing.T) {
	for _, address := range []string{
		"127.0.0.1:80", "127.8.9.10:80", "[::1]:80", "[::ffff:127.0.0.1]:80", "[::FFFF:7F00:1]:80", "[::ffff:127.0.0.1%eth0]:80",
		"localhost:80", "LOCALHOST:80", "localhost.:80", "a.LocalHost:80", "ip6-localhost:80", "localhost.localdomain.:80",
		"2130706433:80", "017700000001:80", "0x7f000001:80", "0x7F.1:80", "127.1:80", "0177.0.0.1:80", "127.0.0.1.:80", "127.0.0.01:80",
		"169.254.169.254:80", "[::ffff:169.254.169.254]:80", "[fe80::1]:80", "[fe80::1%eth0]:80", "[FE80::1%25eth0]:80",
		"[2001:db8::1%eth0]:80", "[fd00::2%lo]:80", // the same machine by another name
		"0.0.0.0:80", "0:80", "0.0.0.0.:80", "[::]:80", "[::ffff:0.0.0.0]:80", "255.255.255.255:80", "224.0.0.1:80", "[ff02::1]:80",
	} {
		for _, pool := range []*lbdv1.Pool{
			{Name: "shop", Backends: []*lbdv1.Backend{{Address: address}}},
			{Name: "shop", Discovery: &lbdv1.Discovery{Host: address[:len(address)-len(":80")], Port: 80}},
		} {
			_, res := New("c").Apply(changeOf(wrapped(t, pool)))
			if res.Err == nil {
				t.Errorf("%s is taken for a backend: %v", address, pool)
			}
		}
	}
}
