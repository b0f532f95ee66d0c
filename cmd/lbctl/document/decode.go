package document

import (
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"

	lbdv1 "lbd/proto/lbd/v1"
)

// decoder fills messages from one file's nodes. What it cannot read it reports and leaves out, so that one pass finds
// everything.
type decoder struct {
	source *Source
	file   File
	// Paths that this document failed at: nothing else is said of them.
	said map[string]bool
	// Inside how many aliases the decoder is; what is read there counts against aliasValuesMax.
	aliases int
}

// pair is one field of a mapping as written.
type pair struct {
	key, value *yaml.Node
	// It is here through a merge key.
	merged bool
}

var contentName = (&lbdv1.Content{}).ProtoReflect().Descriptor().FullName()

// message decodes a mapping and tells whether it was one.
func (d *decoder) message(n *yaml.Node, m protoreflect.Message, path string) bool {
	n, done, ok := d.follow(n, path)
	defer done()
	if !ok {
		return false
	}
	fields := m.Descriptor().Fields()
	if path == "" && holdsCases(n) {
		d.failed(n, path, "this is a list of cases, no document: `lbctl test` reads it")
		return false
	}
	if n.Kind != yaml.MappingNode {
		d.failed(n, path, fmt.Sprintf("%s must be a mapping%s", subject(path), among(" of", names(fields))))
		return false
	}
	pairs := d.pairs(n, path)
	given := map[string]bool{}
	for _, p := range pairs {
		given[p.key.Value] = true
	}
	for _, p := range pairs {
		d.field(p, m, path, given)
	}
	if m.Descriptor().FullName() == contentName {
		d.content(n, m.Interface().(*lbdv1.Content), path)
	}
	return true
}

// holdsCases tells whether a file looks like one for ParseCases.
func holdsCases(n *yaml.Node) bool {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 || n.Content[0].Kind != yaml.MappingNode {
		return false
	}
	for i := 0; i < len(n.Content[0].Content); i += 2 {
		if key := n.Content[0].Content[i].Value; key == "request" || key == "expect" {
			return true
		}
	}
	return false
}

// field decodes one field of a message.
func (d *decoder) field(p pair, m protoreflect.Message, path string, given map[string]bool) {
	if p.merged {
		d.aliases++
		defer func() { d.aliases-- }()
	}
	fields := m.Descriptor().Fields()
	name := p.key.Value
	fd := fields.ByName(protoreflect.Name(name))
	if fd == nil {
		d.unknown(p.key, fields, path, given)
		return
	}
	at := child(path, name)
	d.place(at, p.key, p.value)
	if other := alternative(m, fd); other != nil {
		d.failed(p.key, at, fmt.Sprintf("only one of %s is allowed, and %s is given already",
			strings.Join(names(fd.ContainingOneof().Fields()), ", "), other.Name()))
		return
	}
	switch {
	case p.value.Kind == yaml.ScalarNode && p.value.ShortTag() == "!!null":
		d.failed(p.key, at, subject(at)+" has no value: leave it out or give it one")
	case fd.IsMap():
		d.textMap(p.value, m, fd, at)
	case fd.IsList():
		d.list(p.value, m, fd, at)
	case isDuration(fd), isTimeout(fd):
		d.duration(p.value, m, fd, at)
	case fd.Message() != nil:
		d.message(p.value, m.Mutable(fd).Message(), at)
	default:
		if v, ok := d.scalar(p.value, fd, at); ok {
			m.Set(fd, v)
		}
	}
}

// alternative is the field of the same oneof that the message has already; nil if there is none.
func alternative(m protoreflect.Message, fd protoreflect.FieldDescriptor) protoreflect.FieldDescriptor {
	if o := fd.ContainingOneof(); o != nil && !o.IsSynthetic() {
		return m.WhichOneof(o)
	}
	return nil
}

// unknown reports a field that the schema does not have. What its nearest neighbour would hold is then not missing.
func (d *decoder) unknown(key *yaml.Node, fields protoreflect.FieldDescriptors, path string, given map[string]bool) {
	var free []string
	for _, f := range names(fields) {
		if !given[f] {
			free = append(free, f)
		}
	}
	message := "unknown field " + quote(key.Value)
	if s := nearest(key.Value, free); s != "" {
		d.failed(key, child(path, s), message+" (did you mean `"+s+"`?)")
		return
	}
	d.source.hold(path)
	d.source.problem(d.at(key), path, message+among("; fields here are", names(fields)))
}

// list decodes a sequence. A kind's resources are known by their names, other elements by their index: one that cannot
// be read leaves an empty one, so that those after it keep theirs.
func (d *decoder) list(n *yaml.Node, m protoreflect.Message, fd protoreflect.FieldDescriptor, path string) {
	n, done, ok := d.follow(n, path)
	defer done()
	if !ok {
		return
	}
	if n.Kind != yaml.SequenceNode {
		d.failed(n, path, subject(path)+" must be a list: [ … ], or lines that start with `-`")
		return
	}
	list := m.Mutable(fd).List()
	for i, element := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case fd.Message() == nil:
			d.place(at, element, element)
			v, ok := d.scalar(element, fd, at)
			if !ok {
				v = list.NewElement()
			}
			list.Append(v)
		case parent(path) == "" && fd.Message().Fields().ByName("name") != nil:
			d.resource(element, list, fd)
		default:
			d.place(at, element, element)
			e := list.NewElement()
			d.message(element, e.Message(), at)
			list.Append(e)
		}
	}
}

// resource decodes an element of a kind's list. The second of one name is read for its mistakes and then left out. One
// without a name is known by its place among all of its kind.
func (d *decoder) resource(n *yaml.Node, list protoreflect.List, fd protoreflect.FieldDescriptor) {
	target := n
	if n.Kind == yaml.AliasNode {
		target = n.Alias
	}
	name, _ := find(target, "name")
	at := fmt.Sprintf("%s[%q]", fd.Name(), name.value.Value)
	if name.value.Value == "" {
		at = fmt.Sprintf("%s[%d]", fd.Name(), d.source.Document.ProtoReflect().Get(fd).List().Len()+list.Len())
		delete(d.source.places, at) // it belonged to one that was no resource
	}
	first, twice := d.source.places[at]
	d.place(at, n, n)
	e := list.NewElement()
	switch {
	case !d.message(n, e.Message(), at):
	case twice:
		where := name.value
		if target != n {
			where = n
		}
		d.source.problem(d.at(where), child(at, "name"), fmt.Sprintf("%s is given twice, first at %s", subject(at), first.key))
	default:
		list.Append(e)
	}
}

// textMap decodes a mapping of text to text.
func (d *decoder) textMap(n *yaml.Node, m protoreflect.Message, fd protoreflect.FieldDescriptor, path string) {
	n, done, ok := d.follow(n, path)
	defer done()
	if !ok {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.failed(n, path, subject(path)+" must be a mapping of text to text")
		return
	}
	texts := m.Mutable(fd).Map()
	for _, p := range d.pairs(n, path) {
		at := path + "[" + strconv.Quote(p.key.Value) + "]"
		d.place(at, p.key, p.value)
		if v, ok := d.scalar(p.value, fd.MapValue(), at); ok {
			texts.Set(protoreflect.ValueOfString(p.key.Value).MapKey(), v)
		}
	}
}

// pairs lists a mapping's fields: its own, then those of merge keys (`<<`) that it does not have itself.
func (d *decoder) pairs(n *yaml.Node, path string) []pair {
	var own []pair
	first := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch {
		case key.ShortTag() == "!!merge":
		case key.Kind != yaml.ScalarNode:
			d.failed(key, path, "a field's name must be a plain word")
		case first[key.Value] != nil:
			d.source.problem(d.at(key), child(path, key.Value),
				fmt.Sprintf("%s is given twice, first at line %d", quote(key.Value), first[key.Value].Line))
		default:
			first[key.Value] = key
			own = append(own, pair{key: key, value: value})
		}
	}
	for _, p := range d.merged(n, path, 0) {
		if first[p.key.Value] == nil {
			first[p.key.Value] = p.key
			own = append(own, p)
		}
	}
	return own
}

// merged lists the fields that a mapping's merge keys bring, nearest first; names may repeat.
func (d *decoder) merged(n *yaml.Node, path string, depth int) []pair {
	var all []pair
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].ShortTag() != "!!merge" {
			continue
		}
		from := []*yaml.Node{n.Content[i+1]}
		if from[0].Kind == yaml.SequenceNode {
			from = from[0].Content
		}
		for _, f := range from {
			if f.Kind == yaml.AliasNode {
				f = f.Alias
			}
			if f.Kind != yaml.MappingNode || depth == mergeDepthMax {
				d.failed(n.Content[i], path, "`<<` takes a mapping by its alias, like `<<: *name`, no more than "+
					strconv.Itoa(mergeDepthMax)+" deep")
				return all
			}
			if !d.spend(n.Content[i], path, len(f.Content)) {
				return all
			}
			for j := 0; j+1 < len(f.Content); j += 2 {
				if k := f.Content[j]; k.Kind == yaml.ScalarNode && k.ShortTag() != "!!merge" {
					all = append(all, pair{key: k, value: f.Content[j+1], merged: true})
				}
			}
			all = append(all, d.merged(f, path, depth+1)...)
		}
	}
	return all
}

// follow resolves an alias. The caller calls done when it is through with the node.
func (d *decoder) follow(n *yaml.Node, path string) (target *yaml.Node, done func(), ok bool) {
	if n.Kind != yaml.AliasNode {
		if d.aliases > 0 && !d.spend(n, path, len(n.Content)) {
			return n, func() {}, false
		}
		return n, func() {}, true
	}
	if !d.spend(n, path, 1+len(n.Alias.Content)) {
		return n, func() {}, false
	}
	d.aliases++
	return n.Alias, func() { d.aliases-- }, true
}

// spend counts values that are there through aliases alone: a few lines of YAML can stand for billions of them.
func (d *decoder) spend(n *yaml.Node, path string, values int) bool {
	before := d.source.aliasValues
	if before+values <= aliasValuesMax {
		d.source.aliasValues += values
		return true
	}
	d.source.aliasValues = aliasValuesMax
	if !d.source.unreadable {
		d.failed(n, path, fmt.Sprintf("aliases stand for more than %d values", aliasValuesMax))
	}
	d.source.unreadable = true
	return false
}

// place remembers where a path was written: the first place counts.
func (d *decoder) place(path string, key, value *yaml.Node) {
	if _, ok := d.source.places[path]; !ok {
		scalar := value.Kind == yaml.ScalarNode || value.Kind == yaml.AliasNode && value.Alias.Kind == yaml.ScalarNode
		d.source.places[path] = place{key: d.at(key), value: d.at(value), scalar: scalar}
	}
}

// failed notes that the path could not be read.
func (d *decoder) failed(n *yaml.Node, path, message string) {
	d.said[path] = true
	d.source.failed(d.at(n), path, message)
}

// missing reports a required field, unless something else was said of it or of what is in it.
func (d *decoder) missing(n *yaml.Node, path, message string) {
	if !d.said[path] && !d.source.holders[path] {
		d.failed(n, path, message)
	}
}

// refuse reports a field of the document whose value is not what it may be.
func (d *decoder) refuse(n *yaml.Node, field, message string) {
	where := n
	if p, ok := find(n, field); ok {
		where = p.key
		if p.value.Kind == yaml.ScalarNode {
			where = p.value
		}
	}
	d.failed(where, field, message)
}

func (d *decoder) at(n *yaml.Node) Position {
	return at(d.file, n)
}

// find looks a field up in a mapping as written.
func find(n *yaml.Node, name string) (pair, bool) {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return pair{key: n.Content[i], value: n.Content[i+1]}, true
		}
	}
	return pair{key: &yaml.Node{}, value: &yaml.Node{}}, false
}

// names lists fields in the schema's order.
func names(fields protoreflect.FieldDescriptors) []string {
	all := make([]string, fields.Len())
	for i := range all {
		all[i] = string(fields.Get(i).Name())
	}
	return all
}

// among names what may stand somewhere, if that is anything.
func among(lead string, words []string) string {
	if len(words) == 0 {
		return " without fields, like {}"
	}
	return lead + " " + strings.Join(words, ", ")
}
