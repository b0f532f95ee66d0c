package main

import (
	"fmt"
	"slices"
	"strings"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

// headings are the columns of a kind that cells fills.
var headings = map[state.Kind][]string{
	state.Listeners:       {"NAME", "ADDRESSES", "PROTOCOL"},
	state.Certificates:    {"NAME", "SOURCE", "HOSTS"},
	state.Pools:           {"NAME", "BALANCE", "BACKENDS", "CHECK"},
	state.Routes:          {"NAME", "LISTENERS", "HOSTS", "MATCHES", "ACTION"},
	state.Policies:        {"NAME", "RULE"},
	state.AddressLists:    {"NAME", "ADDRESSES"},
	state.TrustBundles:    {"NAME", "CERTIFICATES"},
	state.Owners:          {"NAME", "HOSTS", "BACKENDS", "LISTENERS"},
	state.ClusterSettings: {"LOOPBACK BACKENDS", "LINK-LOCAL BACKENDS"},
}

func cells(r *lbdv1.Resource) []string {
	switch spec := r.GetSpec().(type) {
	case *lbdv1.Resource_Listener:
		l := spec.Listener
		return []string{l.GetName(), list(l.GetAddresses()), word(l.GetProtocol())}
	case *lbdv1.Resource_Certificate:
		return certificateCells(spec.Certificate)
	case *lbdv1.Resource_Pool:
		return poolCells(spec.Pool)
	case *lbdv1.Resource_Route:
		return routeCells(spec.Route)
	case *lbdv1.Resource_Policy:
		return []string{spec.Policy.GetName(), policyCell(spec.Policy)}
	case *lbdv1.Resource_AddressList:
		return []string{spec.AddressList.GetName(), list(spec.AddressList.GetAddresses())}
	case *lbdv1.Resource_TrustBundle:
		b := spec.TrustBundle
		return []string{b.GetName(), fmt.Sprint(strings.Count(b.GetCa().GetInline(), "-----BEGIN CERTIFICATE-----"))}
	case *lbdv1.Resource_OwnerBounds:
		o := spec.OwnerBounds
		return []string{o.GetName(), list(o.GetAllowedHosts()), list(o.GetAllowedBackendCidrs()), list(o.GetAllowedListenerAddresses())}
	case *lbdv1.Resource_ClusterSettings:
		s := spec.ClusterSettings
		return []string{fmt.Sprint(s.GetAllowLoopbackBackends()), fmt.Sprint(s.GetAllowLinkLocalBackends())}
	default:
		return []string{""}
	}
}

func certificateCells(cert *lbdv1.Certificate) []string {
	switch {
	case cert.GetSelfSigned() != nil:
		return []string{cert.GetName(), "self_signed", list(cert.GetSelfSigned().GetHosts())}
	case cert.GetManagedExternally():
		return []string{cert.GetName(), "pem, managed externally", ""}
	default:
		return []string{cert.GetName(), "pem", ""}
	}
}

func poolCells(p *lbdv1.Pool) []string {
	var backends []string
	for _, b := range p.GetBackends() {
		backends = append(backends, b.GetAddress())
	}
	switch d := p.GetDiscovery(); {
	case d.GetSrv() != "":
		backends = []string{"SRV " + d.GetSrv()}
	case d != nil:
		backends = []string{fmt.Sprintf("DNS %s:%d", d.GetHost(), d.GetPort())}
	}
	balance := p.GetBalance()
	if balance == lbdv1.Balance_BALANCE_UNSPECIFIED {
		balance = lbdv1.Balance_BALANCE_ROUND_ROBIN
	}
	check := ""
	switch p.GetHealthCheck().GetCheck().(type) {
	case *lbdv1.HealthCheck_Http:
		check = "http"
	case *lbdv1.HealthCheck_Tcp:
		check = "tcp"
	case *lbdv1.HealthCheck_Tls:
		check = "tls"
	}
	return []string{p.GetName(), word(balance), list(backends), check}
}

func routeCells(r *lbdv1.Route) []string {
	var matches []string
	for _, m := range r.GetMatches() {
		matches = append(matches, matchText(m))
	}
	action := ""
	switch a := r.GetAction().(type) {
	case *lbdv1.Route_Respond:
		action = fmt.Sprintf("respond %d", a.Respond.GetStatus())
	case *lbdv1.Route_Redirect:
		action = "redirect"
	case *lbdv1.Route_Forward:
		var pools []string
		for _, p := range a.Forward.GetPools() {
			pools = append(pools, p.GetPool())
		}
		action = "forward " + list(pools)
	}
	if r.GetMaintenance() != nil {
		action = "maintenance (" + action + ")"
	}
	return []string{r.GetName(), list(r.GetListeners()), list(r.GetHosts()), list(matches), action}
}

// matchText is a match on one line: =/exact, /prefix, ~regex, with its methods, headers and query parameters.
func matchText(m *lbdv1.RouteMatch) string {
	parts := slices.Clone(m.GetMethods())
	switch p := m.GetPath().GetMatch().(type) {
	case *lbdv1.PathMatch_Exact:
		parts = append(parts, "="+p.Exact)
	case *lbdv1.PathMatch_Prefix:
		parts = append(parts, p.Prefix)
	case *lbdv1.PathMatch_Regex:
		parts = append(parts, "~"+p.Regex)
	}
	for _, h := range m.GetHeaders() {
		parts = append(parts, h.GetName()+":")
	}
	for _, q := range m.GetQuery() {
		parts = append(parts, "?"+q.GetName())
	}
	return strings.Join(parts, " ")
}

func policyCell(p *lbdv1.Policy) string {
	switch rule := p.GetRule().(type) {
	case *lbdv1.Policy_BodySize:
		return fmt.Sprintf("body_size %d", rule.BodySize.GetMaxBytes())
	case *lbdv1.Policy_Concurrency:
		return fmt.Sprintf("concurrency %d", rule.Concurrency.GetMaxRequests())
	case *lbdv1.Policy_Addresses:
		var parts []string
		for _, p := range []struct {
			lead  string
			words []string
		}{
			{"allow", slices.Concat(rule.Addresses.GetAllow(), rule.Addresses.GetAllowLists())},
			{"deny", slices.Concat(rule.Addresses.GetDeny(), rule.Addresses.GetDenyLists())},
			{"except", rule.Addresses.GetDenyExcept()},
		} {
			if len(p.words) > 0 {
				parts = append(parts, p.lead+" "+list(p.words))
			}
		}
		return "addresses " + strings.Join(parts, " ")
	default:
		return ""
	}
}
