package lb

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"lbd/lb/loop"
)

var update = flag.Bool("update", false, "rewrite the expected output of scripts")

// TestChoice runs testdata/choice.txt.
func TestChoice(t *testing.T) {
	const file = "testdata/choice.txt"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := idleServer(t, Options{})
	var out strings.Builder
	ran := 0
	for line := range strings.Lines(string(text)) {
		left, _, ok := strings.Cut(line, " ->")
		if !ok || line[0] == '#' {
			out.WriteString(line)
			continue
		}
		ran++
		name := "p" + strconv.Itoa(ran)
		words := strings.Fields(left)
		failOpen, err := strconv.Atoi(words[0])
		if err != nil {
			t.Fatal(err)
		}
		p := s.NewPool(scriptedPool(t, name, failOpen, words[1:]))
		experience(s, p, words[1:])
		fmt.Fprintf(&out, "%s -> %s\n", left, takers(p))
	}
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	} else if out.String() != string(text) {
		t.Errorf("got\n%s", out.String())
	}
	if ran < 20 {
		t.Errorf("ran %d lines only", ran)
	}
}

// idleServer is a server without listeners.
func idleServer(t *testing.T, options Options) *Server {
	engine, err := loop.New(loop.Options{Kind: loop.KindGoroutine, Loops: 1, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close() })
	options.Engine = engine
	return NewServer(options)
}

func scriptedPool(t *testing.T, name string, failOpen int, words []string) PoolConfig {
	cfg := PoolConfig{Name: name, FailOpen: failOpen, Persistence: &SessionPersistence{Cookie: "c"}, Ejection: &Ejection{}}
	for i, word := range words {
		flags := strings.Split(word, "+")
		b := BackendConfig{Key: name + flags[0], Name: flags[0], Address: netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(1+i)), Weight: 1}
		for _, flag := range flags[1:] {
			switch flag {
			case "noaddr":
				b.Address = netip.AddrPort{}
			case "drain":
				b.State, b.DrainSince = Drain, time.Now()
			case "drained":
				b.State, b.DrainSince = Drain, time.Now().Add(-time.Hour)
			case "maint":
				b.State = InMaintenance
			case "w0":
				b.Weight = 0
			case "backup":
				b.Backup = true
			case "down", "ejected":
			default:
				t.Fatalf("unknown flag %q", flag)
			}
		}
		cfg.Backends = append(cfg.Backends, b)
	}
	return cfg
}

// experience lets the server learn what the words say of health and requests.
func experience(s *Server, p *Pool, words []string) {
	for i, word := range words {
		m := p.members[i]
		if strings.Contains(word, "+down") {
			s.SetEligible(p.name, m.backend.key, false)
		}
		if strings.Contains(word, "+ejected") {
			m.ejectedUntil = time.Now().Add(time.Minute)
		}
	}
	p.refresh(time.Now())
}

func takers(p *Pool) string {
	var takes, keeps []string
	c := p.choice.Load()
	for i, m := range p.members {
		if c.seats[i].takes {
			takes = append(takes, m.backend.name)
		}
		if c.bound[m.mark] != nil {
			keeps = append(keeps, m.backend.name)
		}
	}
	return strings.TrimSpace(strings.Join(takes, " ") + " / " + strings.Join(keeps, " "))
}
