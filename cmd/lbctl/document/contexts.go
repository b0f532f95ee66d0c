package document

import (
	"regexp"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Contexts are the clusters that lbctl knows by name: its own file, not a document of a cluster.
type Contexts struct {
	// Current is the name of the one that is used where nothing else is said; empty: none is.
	Current string
	// All are in the order of their file.
	All []Context
}

// Context is how to reach one cluster, and as whom.
type Context struct {
	Name string
	// Endpoints are HOST:PORT or unix:PATH; there is at least one.
	Endpoints []string
	// CA is "sha256:<hex>" of the cluster's certificate authority, or the path of a file in PEM.
	CA string
	// Token, or TokenFile, the path of a file with one.
	Token, TokenFile string
	// Certificate and Key are paths of files in PEM.
	Certificate, Key string
}

// Find is the context of that name.
func (c *Contexts) Find(name string) (*Context, bool) {
	i := slices.IndexFunc(c.All, func(x Context) bool { return x.Name == name })
	if i < 0 {
		return nil, false
	}
	return &c.All[i], true
}

// ContextNameFault says what is wrong with a context's name; empty: nothing.
func ContextNameFault(name string) string {
	if !contextName.MatchString(name) {
		return "must be 1 to 63 letters, digits, `-`, `.` and `_`, not " + quote(name)
	}
	return ""
}

var contextName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,63}$`)

// ParseContexts reads a file of contexts, strictly. No problem has a token in it.
func ParseContexts(f File) (*Contexts, []Problem) {
	p := &contextParser{strictReader: strictReader{file: f}}
	p.whole("contexts are", "there are no contexts here: delete the file", func(n *yaml.Node) {
		var current *yaml.Node
		p.mapping(n, "the file", map[string]func(*yaml.Node){
			"current": func(v *yaml.Node) {
				current = v
				p.read.Current = p.text(v, "current")
			},
			"contexts": func(v *yaml.Node) { p.list(v, "`contexts`", p.parseContext) },
		})
		if _, ok := p.read.Find(p.read.Current); p.read.Current != "" && !ok {
			p.failed(current, "`current` names %s, which is not among the contexts", quote(p.read.Current))
		}
	})
	return &p.read, p.problems
}

type contextParser struct {
	strictReader
	read Contexts
}

func (p *contextParser) parseContext(n *yaml.Node) {
	var c Context
	before := len(p.problems)
	text := func(name string, to *string) func(*yaml.Node) {
		return func(v *yaml.Node) { *to = p.text(v, name) }
	}
	p.mapping(n, "a context", map[string]func(*yaml.Node){
		"name": text("name", &c.Name),
		"endpoints": func(v *yaml.Node) {
			p.list(v, "`endpoints`", func(e *yaml.Node) { c.Endpoints = append(c.Endpoints, p.text(e, "endpoints")) })
		},
		"ca":          text("ca", &c.CA),
		"token":       text("token", &c.Token),
		"token_file":  text("token_file", &c.TokenFile),
		"certificate": text("certificate", &c.Certificate),
		"key":         text("key", &c.Key),
	})
	_, twice := p.read.Find(c.Name)
	switch fault := ContextNameFault(c.Name); {
	case len(p.problems) > before:
	case fault != "":
		p.failed(n, "`name` %s", fault)
	case twice:
		p.failed(n, "context %s is there twice", quote(c.Name))
	case len(c.Endpoints) == 0:
		p.failed(n, "`endpoints` is missing: HOST:PORT or unix:PATH of at least one node")
	}
	p.read.All = append(p.read.All, c)
}

// YAML is the file. What ParseContexts reads of it is the contexts again.
func (c *Contexts) YAML() []byte {
	v := MapOf()
	if c.Current != "" {
		v.With("current", Text(c.Current))
	}
	var all []*Value
	for _, x := range c.All {
		all = append(all, x.value())
	}
	return v.With("contexts", ListOf(all)).YAML()
}

func (c *Context) value() *Value {
	var endpoints []*Value
	for _, e := range c.Endpoints {
		endpoints = append(endpoints, Text(e))
	}
	v := MapOf().With("name", Text(c.Name)).With("endpoints", ListOf(endpoints))
	for _, field := range [][2]string{
		{"ca", c.CA}, {"token", c.Token}, {"token_file", c.TokenFile}, {"certificate", c.Certificate}, {"key", c.Key},
	} {
		if field[1] != "" {
			v.With(field[0], Text(field[1]))
		}
	}
	return v
}
