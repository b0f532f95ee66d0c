package main

import (
	"testing"
	"time"
)

func TestSpans(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"30d": 720 * time.Hour, "12h": 12 * time.Hour, "1h30m": 90 * time.Minute, "106751d": 106751 * day,
		"": 0, "0d": 0, "d": 0, "-1d": 0, "1.5d": 0, "106752d": 0, "0s": 0, "-1h": 0, "30": 0, "month": 0,
	} {
		if got, ok := parseSpan(text); ok != (want > 0) || ok && got != want {
			t.Errorf("%q is %v, %t, want %v", text, got, ok, want)
		}
	}
	for d, want := range map[time.Duration]string{
		-time.Hour: "0s ago", 59 * time.Second: "59s ago", time.Minute: "1m ago", 59 * time.Minute: "59m ago", 47 * time.Hour: "47h ago", 49 * time.Hour: "2d ago",
	} {
		if got := ago(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}
