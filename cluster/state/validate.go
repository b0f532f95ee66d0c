package state

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Validate reports all that is wrong with a change at once: errors, for which Apply refuses it, and warnings. With a
// base the change is judged as a change of that state. Without one (nil) it is judged alone, as a tool without a
// cluster must: what depends on the cluster (a name that is not in the change, whether loopback is allowed) is a
// warning then.
//
// A field is named by its path: pools["shop"].health_check.timeout, routes["shop"].matches[0].path.prefix. A resource
// without a name is named by its place among those of its kind: pools[2].
func Validate(base *State, change *raftv1.ChangeCommand) []*lbdv1.Violation {
	if base == nil {
		c := &checker{base: New(""), offline: true}
		return c.run(normalizeChange(change))
	}
	return check(base, normalizeChange(change), false)
}

// ValidateRest is Validate without a cluster, for a change of which parts could not be read: what it refers to may be in
// them or in the cluster, so that a name which is not there is only told where it looks like a misspelt one that is.
func ValidateRest(change *raftv1.ChangeCommand) []*lbdv1.Violation {
	c := &checker{base: New(""), offline: true, rest: true}
	return c.run(normalizeChange(change))
}

// check judges a normalised change. A change that is to be stored holds sealed material and no secret.
func check(base *State, change *raftv1.ChangeCommand, storing bool) []*lbdv1.Violation {
	c := &checker{base: base, storing: storing}
	return c.run(change)
}

func hasError(violations []*lbdv1.Violation) bool {
	for _, v := range violations {
		if v.GetSeverity() == lbdv1.Severity_SEVERITY_ERROR {
			return true
		}
	}
	return false
}

// checker collects what is wrong with one change.
type checker struct {
	base    *State
	offline bool // without a cluster
	rest    bool // of a change that could not be read as a whole
	storing bool // on the way into the log
	// restoring: from a backup, with resources of many owners
	restoring bool
	at        time.Time // of the change; zero where it is not dated yet

	next     *State      // base with the change in it
	position map[Key]int // of the change's resources, in the order in which they are checked

	key        Key                         // the resource under check,
	field      string                      // its path
	material   *raftv1.CertificateMaterial // and what it serves
	violations []*lbdv1.Violation
	counts     [3]int // by severity
	suggested  int
	labeled    map[string]bool // "key=value" of all certificates, once it is needed
	looks      looks
	bindings   map[string]binding // by host and cookie
	crowded    map[string]bool    // the groups of claims whose regular expressions are warned of
}

// run checks in the order of the change, so that a report reads as the document does.
func (c *checker) run(change *raftv1.ChangeCommand) []*lbdv1.Violation {
	c.at = change.GetTime().AsTime()
	c.checkChange(change)
	c.place(change)
	unnamed := make(map[Kind]int)
	for i, up := range change.GetUpserts() {
		key, ok := KeyOf(up.GetResource())
		if !ok {
			c.field = ""
			c.errorf(fmt.Sprintf("resources[%d]", i), "says nothing: want one of %s", words(kindWords()))
			continue
		}
		c.key, c.field, c.material = key, key.Field(), up.GetMaterial()
		if key.Name == "" && !key.Kind.Single() {
			c.field = fmt.Sprintf("%s[%d]", key.Kind, unnamed[key.Kind])
		}
		unnamed[key.Kind]++
		if c.position[key] != i && (key.Name != "" || key.Kind.Single()) {
			c.errorf("", "is there twice: names are unique among %s", key.Kind)
			continue
		}
		c.checkResource(Spec(up.GetResource()))
	}
	for _, text := range change.GetDeletes() {
		c.checkDelete(text)
	}
	return c.violations
}

// place makes the state that the change would make, as far as references and clashes need it.
func (c *checker) place(change *raftv1.ChangeCommand) {
	c.position = make(map[Key]int, len(change.GetUpserts()))
	e := c.base.edit()
	for i, up := range change.GetUpserts() {
		key, ok := KeyOf(up.GetResource())
		if _, twice := c.position[key]; !ok || twice {
			continue
		}
		c.position[key] = i
		e.put(resourceKey(key), up)
	}
	for _, text := range change.GetDeletes() {
		if key, err := ParseKey(text); err == nil {
			e.remove(resourceKey(key))
		}
	}
	c.next = e.state()
}

func (c *checker) checkChange(change *raftv1.ChangeCommand) {
	if !c.restoring {
		c.checkOwner(change.GetOwner())
	}
	c.checkText("message", change.GetMessage(), messageBytesMax)
	c.checkText("author", change.GetAuthor(), authorBytesMax)
	c.checkRequestID(change.GetRequestId())
	most := ChangeBytesMax
	if c.restoring {
		most = RestoreBytesMax
	}
	if size := proto.Size(change); size > most {
		c.errorf("resources", "have %d bytes: at most %d in one change", size, most)
	}
}

func (c *checker) checkText(field, value string, bytesMax int) {
	if len(value) > bytesMax {
		c.errorf(field, "has %d bytes: at most %d", len(value), bytesMax)
	}
}

func (c *checker) checkRequestID(id string) {
	c.checkText("request_id", id, requestIDBytesMax)
	if strings.Contains(id, sep) {
		c.errorf("request_id", "must not hold a NUL byte")
	}
}

func (c *checker) checkResource(spec proto.Message) {
	if !c.key.Kind.Single() {
		c.checkName("name", c.key.Name)
	}
	if labeled, ok := spec.(interface{ GetLabels() map[string]string }); ok {
		c.checkLabels(labeled.GetLabels())
	}
	c.key.Kind.info().check(c, spec)
}

// checkDelete refuses to remove what is not there, or what something that stays refers to.
func (c *checker) checkDelete(text string) {
	key, err := ParseKey(text)
	c.key, c.field = key, key.Field()
	if err != nil {
		c.field = ""
		c.errorf("deletes", "%s", err)
		return
	}
	if key.Kind.Single() {
		c.errorf("", "cannot be deleted: set its fields instead")
		return
	}
	if _, named := c.position[key]; named {
		c.errorf("", "is changed and deleted at once")
		return
	}
	if _, exists := c.base.Get(key.Kind, key.Name); !exists {
		text, _ := c.missing(key.Kind, key.Name)
		c.errorf("", "%s", text)
		return
	}
	if key.Kind == Owners {
		c.warnf("", "leaves the tokens of owner `%s` without bounds: they may use any host, any backend and any address of a listener", key.Name)
	}
	if users := c.next.Users(key); len(users) > 0 {
		c.errorf("", "is used by %s: change %s first", keyWords(users), them(len(users)))
	}
}

func keyWords(keys []Key) string {
	const shown = 3
	var texts []string
	for _, k := range keys[:min(len(keys), shown)] {
		texts = append(texts, fmt.Sprintf("%s `%s`", k.Kind.Singular(), k.Name))
	}
	text := strings.Join(texts, ", ")
	if len(keys) > shown {
		text += fmt.Sprintf(" and %d more", len(keys)-shown)
	}
	return text
}

func them(n int) string {
	if n == 1 {
		return "it"
	}
	return "them"
}

// errorf adds an error at a path below the resource under check; an empty path is the resource itself.
func (c *checker) errorf(path, format string, args ...any) {
	c.add(lbdv1.Severity_SEVERITY_ERROR, path, format, args...)
}

func (c *checker) warnf(path, format string, args ...any) {
	c.add(lbdv1.Severity_SEVERITY_WARNING, path, format, args...)
}

// dependf adds what is an error within a cluster, and without one only a warning.
func (c *checker) dependf(path, format string, args ...any) {
	severity := lbdv1.Severity_SEVERITY_ERROR
	if c.offline {
		severity = lbdv1.Severity_SEVERITY_WARNING
	}
	c.add(severity, path, format, args...)
}

func (c *checker) add(severity lbdv1.Severity, path, format string, args ...any) {
	field := c.field
	if field != "" && path != "" && path[0] != '[' {
		field += "."
	}
	if c.counts[severity]++; c.counts[severity] > violationsMax { // apart, so that warnings never crowd out an error
		return
	}
	c.violations = append(c.violations, &lbdv1.Violation{
		Severity:    severity,
		Field:       field + path,
		Description: printable(fmt.Sprintf(format, args...)),
	})
}

// printable is a text that a terminal and a log may show: it quotes what callers wrote.
func printable(text string) string {
	const bytesMax = 512
	if len(text) > bytesMax {
		text = strings.ToValidUTF8(text[:bytesMax], "") + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// checkMost checks that a list is not too long.
func (c *checker) checkMost(path string, n, limit int) {
	if n > limit {
		c.errorf(path, "are %d: at most %d", n, limit)
	}
}

// checkCount checks that a list has at least one element and at most limit.
func (c *checker) checkCount(path, one string, n, limit int) {
	if n == 0 {
		c.errorf(path, "is required: at least one %s", one)
	}
	c.checkMost(path, n, limit)
}

// checkDistinct checks that nothing is in a list twice.
func (c *checker) checkDistinct(field string, values []string) {
	seen := make(map[string]bool, len(values))
	for i, v := range values {
		if seen[v] {
			c.errorf(itemPath(field, i), "`%s` is there twice", v)
		}
		seen[v] = true
	}
}

// checkEnum checks that a value is one that this build knows; none is good.
func (c *checker) checkEnum(path, what string, value protoreflect.Enum) {
	values := value.Descriptor().Values()
	if values.ByNumber(value.Number()) != nil {
		return
	}
	prefix := strings.TrimSuffix(string(values.ByNumber(0).Name()), "UNSPECIFIED")
	var known []string
	for i := 1; i < values.Len(); i++ {
		known = append(known, strings.TrimPrefix(string(values.Get(i).Name()), prefix))
	}
	c.errorf(path, "unknown %s %d (%s)", what, value.Number(), strings.Join(known, ", "))
}

// refer checks that a name is there to be referred to.
func (c *checker) refer(path string, kind Kind, name string) {
	if name == "" {
		c.errorf(path, "is required: the name of %s %s", article(kind.Singular()), kind.Singular())
		return
	}
	if _, ok := c.next.Get(kind, name); ok {
		return
	}
	if text, near := c.missing(kind, name); near || !c.rest {
		c.dependf(path, "%s", text)
	}
}

func article(word string) string {
	if strings.ContainsRune("aeiou", rune(word[0])) {
		return "an"
	}
	return "a"
}

// missing says that there is no such name, and which one might be meant, if any is near. The search is over all names, so only the
// first few get one.
func (c *checker) missing(kind Kind, name string) (text string, near bool) {
	const suggestionsMax = 20
	text = fmt.Sprintf("no %s named `%s`", kind.Singular(), name)
	if c.suggested++; c.suggested > suggestionsMax {
		return text, false
	}
	var names []string
	for r := range c.next.All(kind) {
		key, _ := KeyOf(r.GetResource())
		names = append(names, key.Name)
	}
	suggestion := didYouMean(name, names)
	return text + suggestion, suggestion != ""
}

// earlier tells whether another resource was checked before this one: of two that clash the later one is reported.
// What the change does not hold was there before.
func (c *checker) earlier(other Key) bool {
	at, changed := c.position[other]
	return !changed || at < c.position[c.key]
}
