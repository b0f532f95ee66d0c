package main

import (
	"cmp"
	"fmt"
	"strings"

	lbdv1 "lbd/proto/lbd/v1"
)

// writeDecision shows a decision in the order in which it is made.
func writeDecision(w *table, d *lbdv1.TestRouteResponse) {
	w.row("NODE", fmt.Sprintf("%s, revision %d", d.GetNode(), d.GetRevision()))
	l := d.GetListener()
	w.row("LISTENER", because(l.GetName()+" on "+l.GetAddress(), l.GetReason()))
	if cert := d.GetCertificate(); cert != nil {
		name := "none"
		if cert.GetName() != "" {
			name = fmt.Sprintf("%s, serial %s, %s", cert.GetName(), cert.GetSerial(), cert.GetKeyType())
		}
		w.row("CERTIFICATE", because(name, cert.GetReason()))
	}
	w.row("ROUTE", because(cmp.Or(d.GetRoute(), "none"), d.GetRouteReason()))
	w.row("ACTION", actionText(d))
	if d.GetBackendHost() != "" || d.GetBackendPath() != "" {
		w.row("BACKEND GETS", d.GetBackendHost()+d.GetBackendPath())
	}
	writeHeaderChanges(w, "REQUEST FIELDS", d.GetRequestHeaders())
	writeHeaderChanges(w, "RESPONSE FIELDS", d.GetResponseHeaders())
	for i, p := range d.GetPools() {
		text := fmt.Sprintf("%s, %g %%", p.GetName(), p.GetSharePercent())
		if p.GetName() == d.GetPool() && len(d.GetPools()) > 1 {
			text += ": gets this one"
		}
		w.row(onlyFirst(i, "POOLS"), text)
	}
	if d.GetPool() != "" {
		w.row("BACKEND", because(cmp.Or(d.GetBackend(), "none"), d.GetBackendReason()))
	}
	for i, s := range d.GetTimeouts() {
		w.row(onlyFirst(i, "TIMEOUTS"), s.GetName()+" "+s.GetValue())
	}
	if d.GetRetry() != "" {
		w.row("RETRY", d.GetRetry())
	}
	w.flush()
	writeContenders(w, d)
}

// writeContenders lists who was in question: the pool's backends, and the routes that did not take it.
func writeContenders(w *table, d *lbdv1.TestRouteResponse) {
	if len(d.GetBackends()) > 0 {
		w.row()
		w.row("BACKEND", "WEIGHT", "TAKES")
		for _, b := range d.GetBackends() {
			w.row(b.GetAddress(), fmt.Sprint(b.GetWeight()), yesOr(b.GetEligible(), b.GetReason()))
		}
		w.flush()
	}
	if len(d.GetLosers()) > 0 {
		w.row()
		w.row("OTHER ROUTE", "WHY NOT")
		for _, r := range d.GetLosers() {
			w.row(r.GetRoute(), r.GetReason())
		}
		w.flush()
	}
}

// actionText is what is done, with the status and text of an answer that is lbd's own.
func actionText(d *lbdv1.TestRouteResponse) string {
	text := d.GetAction()
	if d.GetStatus() != 0 {
		text += fmt.Sprintf(", status %d", d.GetStatus())
	}
	if d.GetLocation() != "" {
		text += ", to " + d.GetLocation()
	}
	return because(text, d.GetReason())
}

func because(text, reason string) string {
	if reason == "" {
		return text
	}
	return text + " (" + reason + ")"
}

// onlyFirst is the title of a row if it is the first of several.
func onlyFirst(i int, title string) string {
	if i > 0 {
		return " "
	}
	return title
}

func writeHeaderChanges(w *table, title string, changes []*lbdv1.HeaderChange) {
	for i, ch := range changes {
		w.row(onlyFirst(i, title), headerChangeText(ch))
	}
}

func headerChangeText(ch *lbdv1.HeaderChange) string {
	text := ch.GetAction() + " " + ch.GetName()
	if ch.GetValue() != "" {
		text += ": " + ch.GetValue()
	}
	return text
}

// fact is one thing that a decision says, by which two can be compared.
type fact struct{ path, text string }

// factsOf are what becomes of the request. Why, who loses, and which backend it would be just now are left out: they may differ
// where the outcome does not.
func factsOf(d *lbdv1.TestRouteResponse) []fact {
	all := []fact{
		{"listener", d.GetListener().GetName()},
		{"certificate", strings.TrimSpace(d.GetCertificate().GetName() + " " + d.GetCertificate().GetSerial())},
		{"route", d.GetRoute()},
		{"action", d.GetAction()},
		{"status", numberText(int64(d.GetStatus()))},
		{"location", d.GetLocation()},
		{"reason", d.GetReason()},
		{"backend_host", d.GetBackendHost()},
		{"backend_path", d.GetBackendPath()},
		{"request_headers", headerChangesText(d.GetRequestHeaders())},
		{"response_headers", headerChangesText(d.GetResponseHeaders())},
	}
	for _, p := range d.GetPools() {
		all = append(all, fact{"pools." + p.GetName(), fmt.Sprintf("%g %%", p.GetSharePercent())})
	}
	for _, s := range d.GetTimeouts() {
		all = append(all, fact{"timeouts." + s.GetName(), s.GetValue()})
	}
	return append(all, fact{"retry", d.GetRetry()})
}

func numberText(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func headerChangesText(changes []*lbdv1.HeaderChange) string {
	var all []string
	for _, ch := range changes {
		all = append(all, headerChangeText(ch))
	}
	return strings.Join(all, ", ")
}

// differences are the facts that are not the same, in the order of the decision.
func differences(before, after []fact) []*lbdv1.FieldChange {
	then, now := map[string]string{}, map[string]string{}
	var paths []string
	for _, f := range before {
		then[f.path] = f.text
		paths = append(paths, f.path)
	}
	for _, f := range after {
		now[f.path] = f.text
		if _, ok := then[f.path]; !ok {
			paths = append(paths, f.path)
		}
	}
	var all []*lbdv1.FieldChange
	for _, p := range paths {
		if then[p] != now[p] {
			all = append(all, &lbdv1.FieldChange{Path: p, Before: then[p], After: now[p]})
		}
	}
	return all
}
