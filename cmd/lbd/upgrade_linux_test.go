package main

import "testing"

func TestServiceGroup(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"0::/system.slice/lbd.service\n", "/system.slice/lbd.service/"},
		{"2:cpu:/\n1:name=systemd:/system.slice/lbd.service\n0::/\n", "/system.slice/lbd.service/"},
		{"0::/\n", "/"},
		{"", ""},
	} {
		if got := serviceGroup(c.text); got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
	if !sameService(1 << 30) {
		t.Error("what cannot be found out is no reason to refuse")
	}
}
