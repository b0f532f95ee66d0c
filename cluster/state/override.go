package state

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"net"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// An override is what an operator has said of one backend, beside the revisions. There are at most two of a backend, one
// of its state and one of its weight. What has expired stays until the next command about overrides: who reads judges by
// his own clock.

// Overrides are the overrides of a pool, or of all pools when the name is empty, by pool, address and what they say; those
// that have expired too.
func (s *State) Overrides(pool string) iter.Seq[*lbdv1.Override] {
	prefix := overridePrefix
	if pool != "" {
		prefix += pool + "/"
	}
	return func(yield func(*lbdv1.Override) bool) {
		for _, m := range s.prefix(prefix) {
			if !yield(m.(*lbdv1.Override)) {
				return
			}
		}
	}
}

// OverrideVersion differs between two states that differ in their overrides. It says nothing else.
func (s *State) OverrideVersion() int64 { return s.counter(overridesIndex) }

// override sets and ends overrides, or changes nothing:
//
//  1. answer a repeated request
//  2. refuse what is invalid, about a backend that is not there, or one too many
//  3. drop what has expired, then what is to end
//  4. set what is to be set
//  5. say so in the audit
//  6. remember the request
func (s *State) override(e *edit, cmd *raftv1.OverrideCommand) (*State, Result) {
	digest := overrideCommandDigest(cmd)
	if id := cmd.GetRequestId(); id != "" {
		if known, ok := s.request(id); ok {
			return s, replay(known, digest)
		}
	}
	cmd = normalizeOverrides(cmd)
	if violations := checkOverrides(s, cmd); hasError(violations) {
		return s, Result{Revision: s.revision, Err: &InvalidError{violations}}
	}
	if err := s.findOverridden(cmd); err != nil {
		return s, Result{Revision: s.revision, Err: err}
	}
	if err := s.roomForOverrides(cmd); err != nil {
		return s, Result{Revision: s.revision, Err: err}
	}
	res := Result{Revision: s.revision}
	for o := range s.Overrides("") {
		switch {
		case o.GetExpireTime() != nil && !o.GetExpireTime().AsTime().After(cmd.GetTime().AsTime()):
			e.remove(overrideKey(o))
		case slices.ContainsFunc(cmd.GetClears(), func(k *raftv1.OverrideKey) bool { return names(k, o) }):
			e.remove(overrideKey(o))
			res.Ended = append(res.Ended, o)
		}
	}
	for _, o := range cmd.GetSets() {
		e.setOverride(o, &res)
	}
	if len(res.Overrides)+len(res.Ended) > 0 {
		e.audit(cmd.GetAuthor(), cmd.GetTime(), cmd.GetOrigin(), overridesText(res), 0)
	}
	if id := cmd.GetRequestId(); id != "" {
		e.put(requestKey(s.revision, id), &raftv1.Request{Id: id, Revision: s.revision, Digest: digest})
		e.forgetRequests()
	}
	return e.state(), res
}

// setOverride puts one in the place of what was said before. READY says nothing that a backend does not do by itself.
func (e *edit) setOverride(o *lbdv1.Override, res *Result) {
	key := overrideKey(o)
	if o.GetState() != lbdv1.BackendState_BACKEND_STATE_READY {
		e.put(key, o)
		res.Overrides = append(res.Overrides, o)
		return
	}
	if old, ok := e.records.Get([]byte(key)); ok {
		e.remove(key)
		res.Ended = append(res.Ended, old.(*lbdv1.Override))
	}
}

// names tells whether an override is among those that a key names.
func names(k *raftv1.OverrideKey, o *lbdv1.Override) bool {
	_, state := o.GetWhat().(*lbdv1.Override_State)
	return k.GetPool() == o.GetPool() &&
		(k.GetAddress() == "" || k.GetAddress() == o.GetAddress()) &&
		(!k.GetStateOnly() || state) && (!k.GetWeightOnly() || !state)
}

// endOrphans drops the overrides of pools and backends that a change has removed.
func (e *edit) endOrphans(changes []*lbdv1.Change) {
	if !e.hasPrefix(overridePrefix) {
		return
	}
	view := e.view()
	for _, c := range changes {
		if Kind(c.GetKind()) != Pools {
			continue
		}
		stored, exists := view.Get(Pools, c.GetName())
		for o := range view.Overrides(c.GetName()) {
			if !exists || !hasBackend(stored.GetResource().GetPool(), o.GetAddress()) {
				e.remove(overrideKey(o))
			}
		}
	}
}

// hasBackend tells whether an address is, or with discovery may be, one of the pool's.
func hasBackend(p *lbdv1.Pool, address string) bool {
	return p.GetDiscovery() != nil ||
		slices.ContainsFunc(p.GetBackends(), func(b *lbdv1.Backend) bool { return b.GetAddress() == address })
}

// overridesText is what a command did, in words.
func overridesText(res Result) string {
	var parts []string
	for _, o := range res.Overrides {
		what := fmt.Sprintf("weight %d", o.GetWeight())
		if o.GetState() != 0 {
			what = strings.ToLower(strings.TrimPrefix(o.GetState().String(), "BACKEND_STATE_"))
		}
		parts = append(parts, fmt.Sprintf("pools/%s %s: %s", o.GetPool(), o.GetAddress(), what))
	}
	for _, o := range res.Ended {
		parts = append(parts, fmt.Sprintf("pools/%s %s: override ended", o.GetPool(), o.GetAddress()))
	}
	return strings.Join(parts, ", ")
}

// overrideKey is the record's key; empty for one that says nothing.
func overrideKey(o *lbdv1.Override) string {
	what := ""
	switch o.GetWhat().(type) {
	case *lbdv1.Override_State:
		what = "state"
	case *lbdv1.Override_Weight:
		what = "weight"
	default:
		return ""
	}
	return overridePrefix + o.GetPool() + "/" + o.GetAddress() + "/" + what
}

// overrideDigest is what an override adds to OverrideVersion.
func overrideDigest(o *lbdv1.Override) int64 {
	sum := sha256.Sum256(encode(o))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// overrideCommandDigest is a digest of what the caller asked for, in no way that of a change.
func overrideCommandDigest(cmd *raftv1.OverrideCommand) []byte {
	asked := proto.CloneOf(cmd)
	asked.Author, asked.Time, asked.RequestId, asked.Origin = "", nil, "", nil
	for _, o := range asked.GetSets() {
		o.Author, o.CreateTime = "", nil
	}
	sum := sha256.Sum256(bytes.Join([][]byte{[]byte("override"), encode(asked)}, []byte{0}))
	return sum[:]
}

// normalizeOverrides is the command with addresses as they are stored, and with author and time in what it sets.
func normalizeOverrides(cmd *raftv1.OverrideCommand) *raftv1.OverrideCommand {
	n := proto.CloneOf(cmd)
	for _, o := range n.GetSets() {
		o.Address = NormalAddress(o.GetAddress())
		o.Author, o.CreateTime = n.GetAuthor(), n.GetTime()
	}
	for _, k := range n.GetClears() {
		if k.GetAddress() != "" {
			k.Address = NormalAddress(k.GetAddress())
		}
	}
	return n
}

// checkOverrides reports what is wrong with a normalised command.
func checkOverrides(s *State, cmd *raftv1.OverrideCommand) []*lbdv1.Violation {
	c := &checker{base: s, next: s}
	c.checkText("author", cmd.GetAuthor(), authorBytesMax)
	c.checkRequestID(cmd.GetRequestId())
	if n := max(len(cmd.GetSets()), len(cmd.GetClears())); n > overridesChangedMax {
		c.errorf("overrides", "are %d: at most %d in one command", n, overridesChangedMax)
		return c.violations
	}
	for _, o := range cmd.GetSets() {
		c.checkOverride(o, cmd)
	}
	for _, k := range cmd.GetClears() {
		if k.GetPool() == "" {
			c.errorf("pool", "is required: the name of a pool")
		}
	}
	return c.violations
}

// roomForOverrides refuses one too many of a pool, of an owner's pools, or of all. What has expired counts no more.
func (s *State) roomForOverrides(cmd *raftv1.OverrideCommand) error {
	pools, owners, all := map[string]int{}, map[string]int{}, map[string]bool{}
	ownerOf := func(pool string) string {
		stored, _ := s.Get(Pools, pool)
		return stored.GetResource().GetOwner()
	}
	count := func(o *lbdv1.Override) {
		if key := overrideKey(o); !all[key] {
			all[key] = true
			pools[o.GetPool()]++
			owners[ownerOf(o.GetPool())]++
		}
	}
	for o := range s.Overrides("") {
		if o.GetExpireTime() == nil || o.GetExpireTime().AsTime().After(cmd.GetTime().AsTime()) {
			count(o)
		}
	}
	for _, o := range cmd.GetSets() {
		count(o)
	}
	const remedy = ": end some first (`lbctl override list`, `lbctl override clear`)"
	for _, o := range cmd.GetSets() {
		switch owner := ownerOf(o.GetPool()); {
		case pools[o.GetPool()] > overridesPoolMax:
			return &FullError{fmt.Sprintf("pool `%s` would have more than %d overrides", o.GetPool(), overridesPoolMax) + remedy}
		case owners[owner] > overridesOwnerMax:
			return &FullError{fmt.Sprintf("the pools of owner `%s` would have more than %d overrides", owner, overridesOwnerMax) + remedy}
		case len(all) > overridesMax:
			most := slices.MaxFunc(slices.Sorted(maps.Keys(pools)), func(a, b string) int { return cmp.Compare(pools[a], pools[b]) })
			return &FullError{fmt.Sprintf("there would be more than %d overrides, most of them (%d) of pool `%s`", overridesMax, pools[most], most) + remedy}
		}
	}
	return nil
}

func (c *checker) checkOverride(o *lbdv1.Override, cmd *raftv1.OverrideCommand) {
	if o.GetPool() == "" {
		c.errorf("pool", "is required: the name of a pool")
	}
	if fault := addressFault(o.GetAddress()); fault != "" {
		c.errorf("address", "%s", fault)
	}
	switch what := o.GetWhat().(type) {
	case *lbdv1.Override_State:
		if _, known := lbdv1.BackendState_name[int32(what.State)]; !known || what.State == 0 {
			c.errorf("state", "is none: want `READY`, `DRAIN` or `MAINTENANCE`")
		}
	case *lbdv1.Override_Weight:
		if what.Weight < 0 || what.Weight > weightMax {
			c.errorf("weight", "is %d: want 0 to %d", what.Weight, weightMax)
		}
	default:
		c.errorf("state", "is missing: want a state or a weight")
	}
	c.checkText("reason", o.GetReason(), messageBytesMax)
	if expires := o.GetExpireTime(); expires != nil && (!expires.IsValid() || !expires.AsTime().After(cmd.GetTime().AsTime())) {
		c.errorf("expire_time", "has passed: want a time to come, or none")
	}
}

// addressFault says what is wrong with a backend's address; empty: nothing.
func addressFault(address string) string {
	host, port, err := net.SplitHostPort(address)
	_, isIP := splitIP(host)
	switch {
	case address == "":
		return "is required: a backend's, as in the pool"
	case err != nil || portFault(port) != "" || !isIP && hostFault(host) != "":
		return "`" + address + "` is no backend: want `host:port`"
	}
	return ""
}

// findOverridden refuses pools that are not there, and backends that a pool has not. A pool with discovery may have any.
func (s *State) findOverridden(cmd *raftv1.OverrideCommand) error {
	find := func(pool, address string) error {
		stored, exists := s.Get(Pools, pool)
		if !exists {
			text, _ := (&checker{next: s}).missing(Pools, pool)
			return &MissingError{text, Key{Pools, pool}.String()}
		}
		p := stored.GetResource().GetPool()
		if address == "" || hasBackend(p, address) {
			return nil
		}
		var known []string
		for _, b := range p.GetBackends() {
			known = append(known, b.GetAddress())
		}
		return &MissingError{printable("pool `" + pool + "` has no backend `" + address + "`" + didYouMean(address, known)), Key{Pools, pool}.String() + "/" + address}
	}
	for _, o := range cmd.GetSets() {
		if err := find(o.GetPool(), o.GetAddress()); err != nil {
			return err
		}
	}
	for _, k := range cmd.GetClears() {
		if err := find(k.GetPool(), k.GetAddress()); err != nil {
			return err
		}
	}
	return nil
}
