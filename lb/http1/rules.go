package http1

import (
	"bytes"
	"fmt"
	"slices"
)

// Rules are the field changes of a route in one direction, ready for use. A nil *Rules
// changes nothing.
type Rules struct {
	replaced []ruleName // set or removed: what came with the message is dropped
	known    nameSet    // those of them that we would otherwise write ourselves
	lines    []byte     // set and added fields with their CRLFs, in the order in which they are written
}

type ruleName struct {
	name string
	hash uint32
}

// CompileRules makes Rules: set replaces a field, add adds one more, remove drops all of a
// name. It is an error if a name is no token, if a value holds a control or surrounding
// whitespace, or if the field is one that frames the message, describes the connection or
// vouches for the client: Host, Content-Length, Connection, Client-Cert and their like.
func CompileRules(set, add map[string]string, remove []string) (*Rules, error) {
	r := &Rules{}
	for _, name := range sortedKeys(set) {
		if err := r.replace(name); err != nil {
			return nil, err
		}
		if err := r.line(name, set[name]); err != nil {
			return nil, err
		}
	}
	for _, name := range remove {
		if err := r.replace(name); err != nil {
			return nil, err
		}
	}
	for _, name := range sortedKeys(add) {
		if err := r.line(name, add[name]); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Then returns the rules that do the changes of r and then those of next, so that next may undo what r does. Either may be nil.
func (r *Rules) Then(next *Rules) *Rules {
	switch {
	case r == nil:
		return next
	case next == nil:
		return r
	}
	return &Rules{
		replaced: slices.Concat(r.replaced, next.replaced),
		known:    r.known | next.known,
		lines:    next.Edit(slices.Clone(r.lines), 0),
	}
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (r *Rules) replace(name string) error {
	id, err := ruleTarget(name)
	if err != nil {
		return err
	}
	if id != nameOther {
		r.known |= 1 << id
	}
	r.replaced = append(r.replaced, ruleName{name, hashName(name)})
	return nil
}

func (r *Rules) line(name, value string) error {
	id, err := ruleTarget(name)
	if err != nil {
		return err
	}
	if id != nameOther {
		r.known |= 1 << id
	}
	v := []byte(value)
	if forbiddenOctet(v) >= 0 || len(trimSpace(v)) != len(v) {
		return fmt.Errorf("field %s: value has a control character or surrounding whitespace", name)
	}
	r.lines = append(r.lines, name...)
	r.lines = append(r.lines, ": "...)
	r.lines = append(r.lines, value...)
	r.lines = append(r.lines, "\r\n"...)
	return nil
}

// ruleTarget classifies the name that a rule is about.
func ruleTarget(name string) (nameID, error) {
	if !isToken([]byte(name)) {
		return 0, fmt.Errorf("%q is no field name", name)
	}
	id := lookupName([]byte(name), hashName(name))
	if fixed.has(id) {
		return 0, fmt.Errorf("field %s cannot be changed by a rule", name)
	}
	return id, nil
}

// drops reports whether a field that came with the message must not go on. A spelling with
// "_" for "-" counts as the same name unless twins are allowed.
func (r *Rules) drops(name []byte, hash uint32, allowTwins bool) bool {
	if r == nil {
		return false
	}
	for i := range r.replaced {
		if r.replaced[i].hash != hash {
			continue
		}
		like := sameName(name, r.replaced[i].name)
		if like == sameSpelling || like == sameTwin && !allowTwins {
			return true
		}
	}
	return false
}

// writes reports whether the rules decide about a field that we write ourselves.
func (r *Rules) writes(id nameID) bool { return r != nil && r.known.has(id) }

func (r *Rules) append(dst []byte) []byte {
	if r == nil {
		return dst
	}
	return append(dst, r.lines...)
}

// Edit does the changes in the whole field lines head[from:], which are ours: each a name, a colon and a CRLF. It returns head
// with what is left of them and what the rules add.
func (r *Rules) Edit(head []byte, from int) []byte {
	if r == nil {
		return head
	}
	kept := head[:from]
	for rest := head[from:]; len(rest) > 0; {
		n := bytes.IndexByte(rest, '\n') + 1
		if n == 0 {
			n = len(rest)
		}
		line := rest[:n]
		rest = rest[n:]
		if name := line[:max(0, bytes.IndexByte(line, ':'))]; !r.drops(name, hashName(name), false) {
			kept = append(kept, line...)
		}
	}
	return r.append(kept)
}
