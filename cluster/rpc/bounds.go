package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// deniedError refuses what the caller may not write, with all else that is wrong with the change.
type deniedError struct {
	violations []*lbdv1.Violation
}

func (e *deniedError) Error() string {
	return "denied: " + e.violations[0].GetField() + ": " + e.violations[0].GetDescription()
}

// deny notes what the caller may not write.
func (d *draft) deny(field, format string, args ...any) {
	d.denied = append(d.denied, violation(field, format, args...))
}

// judge finds out what of the change the caller may not write, and which backends are where nobody's may be. What is stored just so
// is not judged: it is not touched. What only asks is told of bounds, and not that it takes another role to change something.
func (d *draft) judge(ctx context.Context, w *writer, by Caller, changing bool) {
	d.checkPlaces(ctx, w, by)
	d.checkAdminKinds(by, changing)
	d.checkBackups(w, by)
	if !by.bound() {
		return
	}
	bounds, limited := d.current.BoundsOf(d.change.GetOwner())
	for _, up := range d.change.GetUpserts() {
		if d.base.Holds(up) {
			continue
		}
		key, ok := state.KeyOf(up.GetResource())
		if !ok || !d.checkHolder(key, by, true) {
			continue
		}
		if limited {
			d.checkHosts(key, up, bounds)
			d.checkAddresses(key, up.GetResource().GetListener(), bounds)
		}
		d.checkReferences(key, up.GetResource(), by, limited)
	}
	for _, text := range d.change.GetDeletes() {
		if key, err := state.ParseKey(text); err == nil {
			d.checkHolder(key, by, false)
		}
	}
}

// checkAdminKinds keeps what concerns the whole cluster to admins who are bound to no owner.
func (d *draft) checkAdminKinds(by Caller, changing bool) {
	if !by.bound() && (!changing || by.Role >= lbdv1.Role_ROLE_ADMIN) {
		return
	}
	refuse := func(key state.Key) {
		d.deny(key.Field(), "only an admin who is bound to no owner may change %s: this is %s", key.Kind, by.Author)
	}
	for _, up := range d.change.GetUpserts() {
		if key, ok := state.KeyOf(up.GetResource()); ok && ofTheCluster(key.Kind) && !d.base.Holds(up) {
			refuse(key)
		}
	}
	for _, text := range d.change.GetDeletes() {
		if key, err := state.ParseKey(text); err == nil && ofTheCluster(key.Kind) {
			refuse(key)
		}
	}
}

// checkBackups tries the directory that new settings name, on this node: only for who may set it, so that nobody else learns what is
// on the disk.
func (d *draft) checkBackups(w *writer, by Caller) {
	if by.bound() || by.Role < lbdv1.Role_ROLE_ADMIN || w.backupFault == nil {
		return
	}
	for _, up := range d.change.GetUpserts() {
		directory := up.GetResource().GetClusterSettings().GetBackup().GetDirectory()
		if !path.IsAbs(directory) || d.base.Holds(up) {
			continue
		}
		if err := w.backupFault(directory); err != nil {
			d.violations = append(d.violations, warning("cluster_settings.backup.directory", "no backup can be written there on node %s: %v", w.node, err))
		}
	}
}

func ofTheCluster(kind state.Kind) bool { return kind == state.ClusterSettings || kind == state.Owners }

// checkHolder refuses what an owner holds that the caller is not bound to. What the first start made may be replaced.
func (d *draft) checkHolder(key state.Key, by Caller, replacing bool) bool {
	stored, exists := d.current.Get(key.Kind, key.Name)
	owner := stored.GetResource().GetOwner()
	if !exists || key.Kind.Single() || slices.Contains(by.Owners, owner) || replacing && owner == state.OwnerDev {
		return true
	}
	d.deny(key.Field(), "belongs to owner `%s`: %s is bound to %s", owner, by.Author, ownersText(by.Owners))
	return false
}

// checkHosts refuses hosts of a route or a certificate that the owner's bounds do not have.
func (d *draft) checkHosts(key state.Key, up *raftv1.StoredResource, bounds state.Bounds) {
	var denied []string
	for i, host := range state.HostsOf(up) {
		switch {
		case bounds.AllowsHost(host):
		case key.Kind == state.Routes && host == "":
			d.deny(key.Field()+".hosts", "`hosts` are missing: owners/%s allows any host only by `*` in allowed_hosts", d.change.GetOwner())
		case key.Kind == state.Routes:
			d.deny(fmt.Sprintf("%s.hosts[%d]", key.Field(), i), "`%s` is outside of allowed_hosts of owners/%s", host, d.change.GetOwner())
		case up.GetResource().GetCertificate().GetSelfSigned() != nil:
			d.deny(fmt.Sprintf("%s.self_signed.hosts[%d]", key.Field(), i), "`%s` is outside of allowed_hosts of owners/%s", host, d.change.GetOwner())
		default:
			denied = append(denied, "`"+host+"`")
		}
	}
	if len(denied) > 0 {
		d.deny(cmp.Or(d.chainField, key.Field()+".pem.chain"), "the leaf is for %s: outside of allowed_hosts of owners/%s", strings.Join(denied, ", "), d.change.GetOwner())
	}
}

// checkAddresses refuses addresses of a listener that the owner's bounds do not have.
func (d *draft) checkAddresses(key state.Key, l *lbdv1.Listener, bounds state.Bounds) {
	for i, address := range l.GetAddresses() {
		if !bounds.AllowsListener(state.NormalAddress(address)) {
			d.deny(fmt.Sprintf("%s.addresses[%d]", key.Field(), i), "`%s` is outside of allowed_listener_addresses of owners/%s", address, d.change.GetOwner())
		}
	}
}

// checkReferences refuses to name what another owner has: listeners that do not allow it, certificates and, where backends are
// bounded, pools, which would lead around the bounds.
func (d *draft) checkReferences(key state.Key, r *lbdv1.Resource, by Caller, limited bool) {
	refer := func(path string, kind state.Kind, name string) {
		stored, exists := d.named(state.Key{Kind: kind, Name: name})
		owner := stored.GetOwner()
		if !exists || owner == d.change.GetOwner() || owner == state.OwnerDev || slices.Contains(by.Owners, owner) ||
			kind == state.Listeners && state.MayUse(stored, d.change.GetOwner()) {
			return
		}
		remedy := ""
		if kind == state.Listeners {
			remedy = fmt.Sprintf("; its owner can name `%s` in the listener's allowed_owners", d.change.GetOwner())
		}
		d.deny(key.Field()+"."+path, "%s `%s` belongs to owner `%s`: %s is bound to %s%s", kind.Singular(), name, owner, by.Author, ownersText(by.Owners), remedy)
	}
	for i, name := range r.GetRoute().GetListeners() {
		refer(fmt.Sprintf("listeners[%d]", i), state.Listeners, name)
	}
	if limited {
		for i, p := range r.GetRoute().GetForward().GetPools() {
			refer(fmt.Sprintf("forward.pools[%d].pool", i), state.Pools, p.GetPool())
		}
	}
	if l := r.GetListener(); l.GetProtocol() == lbdv1.Protocol_PROTOCOL_HTTPS {
		d.checkChoice(key, l.GetTls())
		refer("tls.default_certificate", state.Certificates, cmp.Or(l.GetTls().GetDefaultCertificate(), "default"))
	}
	for i, name := range r.GetListener().GetTls().GetCertificates() {
		refer(fmt.Sprintf("tls.certificates[%d]", i), state.Certificates, name)
	}
	refer("tls.client_certificate", state.Certificates, r.GetPool().GetTls().GetClientCertificate())
	refer("health_check.tls_override.client_certificate", state.Certificates, r.GetPool().GetHealthCheck().GetTlsOverride().GetClientCertificate())
}

// checkChoice refuses a listener that would choose among the certificates of all owners: it has to name them.
func (d *draft) checkChoice(key state.Key, t *lbdv1.ListenerTls) {
	if len(t.GetCertificates()) == 0 {
		d.deny(key.Field()+".tls.certificates", "are missing: without them the listener would serve every owner's: name those of owner `%s`", d.change.GetOwner())
	}
	for i, selector := range t.GetCertificates() {
		if strings.Contains(selector, "=") {
			d.deny(fmt.Sprintf("%s.tls.certificates[%d]", key.Field(), i), "`%s` would choose other owners' certificates, too: name those of owner `%s`", selector, d.change.GetOwner())
		}
	}
}

// named is a resource that the change refers to, as it would be then.
func (d *draft) named(key state.Key) (*lbdv1.Resource, bool) {
	if r, ok := d.resources()[key]; ok {
		return r, true
	}
	stored, ok := d.current.Get(key.Kind, key.Name)
	return stored.GetResource(), ok
}

// resources are the change's by their keys.
func (d *draft) resources() map[state.Key]*lbdv1.Resource {
	if d.byKey == nil {
		d.byKey = map[state.Key]*lbdv1.Resource{}
		for _, up := range d.change.GetUpserts() {
			key, _ := state.KeyOf(up.GetResource())
			d.byKey[key] = up.GetResource()
		}
	}
	return d.byKey
}

// refusals are what is wrong with a change, all of it: what the caller may not write, beside what nobody may. Of two complaints at
// one field that for everybody stays, but for a listener that is not the owner's to name: there the caller's rights are the cause.
func (d *draft) refusals(result state.Result) error {
	var refused *state.InvalidError
	errs, _ := split(d.violations)
	if errors.As(result.Err, &refused) {
		fromRules, _ := split(refused.Violations)
		errs = append(errs, dropAt(fromRules, errs)...)
	}
	var denied []*lbdv1.Violation
	for _, v := range d.denied {
		if strings.HasPrefix(v.GetField(), string(state.Routes)) && strings.Contains(v.GetField(), ".listeners[") {
			errs = dropAt(errs, []*lbdv1.Violation{v})
		}
		denied = append(denied, dropAt([]*lbdv1.Violation{v}, errs)...)
	}
	switch {
	case len(denied) > 0:
		return &deniedError{append(denied, errs...)}
	case len(errs) > 0:
		return &state.InvalidError{Violations: errs}
	}
	return nil
}

// dropAt is violations without those at a field of others.
func dropAt(violations, others []*lbdv1.Violation) []*lbdv1.Violation {
	var kept []*lbdv1.Violation
	for _, v := range violations {
		if !slices.ContainsFunc(others, func(o *lbdv1.Violation) bool { return o.GetField() == v.GetField() }) {
			kept = append(kept, v)
		}
	}
	return kept
}
