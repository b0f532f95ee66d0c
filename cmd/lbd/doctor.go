package main

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"lbd/lb"
	"lbd/lb/loop"
	lbdv1 "lbd/proto/lbd/v1"
	tlsterm "lbd/tls"
)

const (
	// openFilesMin is what a front door needs at least: a client and a backend connection for each of some ten thousand clients.
	openFilesMin = 65536
	// reuseRequestsMin is from when a reuse rate says something.
	reuseRequestsMin = 100
	// reuseMin is the share of requests on kept connections below which something is wrong.
	reuseMin = 0.5
)

// Doctor implements rpc.Observer: it names what costs speed or will fail without an error in any log.
func (a *appliance) Doctor(context.Context) []*lbdv1.Finding {
	var out []*lbdv1.Finding
	out = append(out, openFiles(loop.OpenFiles()))
	out = append(out, a.reuse()...)
	out = append(out, buildFinding(buildSettings()), a.processors(), memoryFinding(debug.SetMemoryLimit(-1), heldMemory()))
	s := a.node.State()
	out = append(out, stateFinding(s.Usage().Total(), s.StateBytes()))
	out = append(out, a.unnamed())
	out = append(out, a.rsaOnly()...)
	out = append(out, a.ending(time.Now())...)
	out = append(out, a.ticketKeysFinding(time.Now()))
	out = append(out, a.certificatesUnused(), clockFinding(clockError()))
	return append(out, a.standing()...)
}

func fine(check, format string, args ...any) *lbdv1.Finding {
	return &lbdv1.Finding{Check: check, Level: lbdv1.FindingLevel_FINDING_LEVEL_OK, Message: fmt.Sprintf(format, args...)}
}

func warning(check, remedy, format string, args ...any) *lbdv1.Finding {
	return &lbdv1.Finding{Check: check, Level: lbdv1.FindingLevel_FINDING_LEVEL_WARNING, Message: fmt.Sprintf(format, args...), Remedy: remedy}
}

func failure(check, remedy, format string, args ...any) *lbdv1.Finding {
	return &lbdv1.Finding{Check: check, Level: lbdv1.FindingLevel_FINDING_LEVEL_ERROR, Message: fmt.Sprintf(format, args...), Remedy: remedy}
}

func openFiles(limit, used uint64) *lbdv1.Finding {
	const check = "open_files"
	switch {
	case used > limit/10*9:
		return failure(check, "raise the hard limit (LimitNOFILE= in the unit) and restart", "%d of %d are in use: soon no connection can be accepted", used, limit)
	case limit < openFilesMin:
		return warning(check, "raise the hard limit (LimitNOFILE= in the unit) and restart", "at most %d: each request under way needs two", limit)
	}
	return fine(check, "%d of %d are in use", used, limit)
}

// reuse finds backends to which nearly every request opens a connection of its own: it costs several times the CPU, and no
// log has an error.
func (a *appliance) reuse() []*lbdv1.Finding {
	const check = "reuse"
	var out []*lbdv1.Finding
	seen := map[string]bool{}
	for _, p := range a.server.Stats().Pools {
		for _, b := range p.Backends {
			tries := b.NewConnections + b.Reused
			if seen[b.Key] || tries < reuseRequestsMin || float64(b.Reused) >= reuseMin*float64(tries) {
				continue
			}
			seen[b.Key] = true
			why, remedy := reuseCause(b.BackendStats)
			out = append(out, warning(check, remedy, "pools/%s/%s: only %d %% of %d requests went over a kept connection: %s",
				p.Name, b.Name, 100*b.Reused/tries, tries, why))
		}
	}
	if out == nil {
		out = append(out, fine(check, "backends' connections are reused"))
	}
	return out
}

// reuseCause is what the counters say about a backend whose connections are not reused.
func reuseCause(b lb.BackendStats) (why, remedy string) {
	switch {
	case b.Failures*2 > b.NewConnections:
		return "most connections end with an error", "see `lbctl events` and the backend's log"
	}
	return "the backend closes them after an answer, or they reach connections.idle_timeout between two requests",
		"switch keep-alive on in the backend; where requests are rare raise its keep-alive time, and connections.idle_timeout to a second less"
}

// buildSettings are the switches that this binary was built with.
func buildSettings() map[string]string {
	settings := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
	}
	return settings
}

func buildFinding(settings map[string]string) *lbdv1.Finding {
	const check, remedy = "build", "build with `go build ./cmd/lbd`, without these flags"
	switch {
	case settings["-race"] == "true":
		return warning(check, remedy, "built with the race detector: several times slower")
	case strings.Contains(settings["-gcflags"], "-N") || strings.Contains(settings["-gcflags"], "-l"):
		return warning(check, remedy, "built without optimisation (-gcflags %s)", settings["-gcflags"])
	}
	return fine(check, "optimised, %s", runtime.Version())
}

func (a *appliance) processors() *lbdv1.Finding {
	const check = "processors"
	want, have := loop.Procs(0), runtime.GOMAXPROCS(0)
	if have < want {
		return warning(check, "leave GOMAXPROCS out of the environment", "GOMAXPROCS is %d, %d loops want %d", have, a.engine.Loops(), want)
	}
	return fine(check, "%d loops, engine %s", a.engine.Loops(), a.engine.Kind())
}

// rsaOnly finds names for which only an RSA key is there: a handshake costs some thirty times as much of our CPU.
func (a *appliance) rsaOnly() []*lbdv1.Finding {
	const check = "certificates"
	kinds := map[string]string{}
	for c := range a.certificates.Current().All() {
		for _, host := range c.Hosts() {
			if kinds[host] == "" || !strings.HasPrefix(c.KeyType(), "RSA") {
				kinds[host] = c.KeyType()
			}
		}
	}
	var only []string
	for host, kind := range kinds {
		if strings.HasPrefix(kind, "RSA") {
			only = append(only, host)
		}
	}
	if len(only) == 0 {
		return []*lbdv1.Finding{fine(check, "every name has a key that is cheap to sign with")}
	}
	slices.Sort(only)
	return []*lbdv1.Finding{warning(check, "add an ECDSA certificate for the same names: clients that can take it, the others get RSA",
		"%d names have RSA keys alone, whose handshakes cost many times the CPU: %s", len(only), some(only))}
}

// unnamed finds hosts of routes that no certificate of their listener names: clients get the default one, which is another's,
// or no handshake.
func (a *appliance) unnamed() *lbdv1.Finding {
	const check = "names"
	world := a.view.Load()
	named := map[string]map[string]bool{} // by listener
	for name, l := range world.listeners {
		if l.config.TLS {
			named[name] = a.namedBy(world.offered(l))
		}
	}
	var lacking []string
	for _, r := range world.routes {
		for _, name := range r.config.Listeners {
			hosts, secure := named[name]
			for _, host := range r.config.Hosts {
				if secure && !isNamed(hosts, host) {
					lacking = append(lacking, host+" (listener "+name+")")
				}
			}
		}
	}
	if len(lacking) == 0 {
		return fine(check, "every host of a route is named by a certificate of its listener")
	}
	slices.Sort(lacking)
	lacking = slices.Compact(lacking)
	return warning(check, "add certificates for them (`lbctl cert check HOST` shows what a client gets)",
		"%d hosts of routes are named by no certificate: clients get the default one or no handshake: %s", len(lacking), some(lacking))
}

// namedBy are the hosts of the certificates that a listener offers.
func (a *appliance) namedBy(offered tlsterm.Policy) map[string]bool {
	hosts := map[string]bool{}
	for c := range a.certificates.Current().All() {
		if offered.Certificates == nil || offered.Certificates[c.Name()] || offered.DefaultCertificate == c.Name() {
			for _, host := range c.Hosts() {
				hosts[host] = true
			}
		}
	}
	return hosts
}

// isNamed tells whether a certificate names a route's host: itself, or by a wildcard for one label. Of an address a client
// says nothing in the handshake: it is not looked for.
func isNamed(hosts map[string]bool, host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	_, parent, _ := strings.Cut(host, ".")
	return hosts[host] || hosts["*."+parent]
}

// some of many names.
func some(names []string) string {
	const shown = 5
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}

// ending warns a month ahead, and calls it an error when status begins to say so.
func (a *appliance) ending(now time.Time) []*lbdv1.Finding {
	const check, remedy = "expiry", "rotate it: `lbctl cert rotate NAME --chain FILE --key FILE`"
	var out []*lbdv1.Finding
	urgent := a.expiring(now, expiryWarning)
	for _, text := range a.expiring(now, expirySoon) {
		if slices.Contains(urgent, text) {
			out = append(out, failure(check, remedy, "%s", text))
		} else {
			out = append(out, warning(check, remedy, "%s", text))
		}
	}
	if out == nil {
		out = append(out, fine(check, "no certificate ends within %d days", int(expirySoon.Hours()/24)))
	}
	return out
}

func (a *appliance) certificatesUnused() *lbdv1.Finding {
	const check = "unused"
	var unused []string
	shown := a.view.Load().clientCertificates()
	for c := range a.certificates.Current().All() {
		if len(a.terminator.Use(c.Name()).Listeners) == 0 && !shown[c.Name()] {
			unused = append(unused, c.Name())
		}
	}
	if len(unused) == 0 {
		return fine(check, "every certificate is shown to some client")
	}
	return warning(check, "`lbctl cert unused` lists them", "%d certificates are shown to nobody: %s", len(unused), some(unused))
}

// clientCertificates are those that are shown to backends.
func (c *compiled) clientCertificates() map[string]bool {
	shown := map[string]bool{}
	for _, p := range c.pools {
		shown[p.spec.GetTls().GetClientCertificate()] = true
		shown[p.spec.GetHealthCheck().GetTlsOverride().GetClientCertificate()] = true
	}
	return shown
}

func clockFinding(problem string) *lbdv1.Finding {
	const check = "clock"
	if problem != "" {
		return warning(check, "run an NTP client (chrony, systemd-timesyncd): certificates and overrides end by the clock", "%s", problem)
	}
	return fine(check, "synchronised")
}

// standing are the problems that status names.
func (a *appliance) standing() []*lbdv1.Finding {
	const check = "status"
	var out []*lbdv1.Finding
	for _, text := range a.Status().GetProblems() {
		if strings.HasPrefix(text, "certificates/") { // said above
			continue
		}
		out = append(out, warning(check, "see `lbctl status`", "%s", text))
	}
	if out == nil {
		out = append(out, fine(check, "serving, nothing refused"))
	}
	return out
}
