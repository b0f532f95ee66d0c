// Package document turns what an operator writes into the schema's messages and back, and remembers where everything
// was written, so that every complaint names its file, line and column.
//
// A document passes through it in this order: files are read (files.go) and parsed, each mapping is decoded by the
// schema's reflection (decode.go, scalar.go), files and variables that it names are read (content.go), and what the
// rules of cluster/state say of it is put in place (problem.go). The way back is one form, Value (value.go), written as
// YAML (yaml.go) or JSON (json.go).
package document

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

// File is the text of one file.
type File struct {
	// Name is what positions call it.
	Name string
	// Folder is what paths in it are relative to.
	Folder string
	Data   []byte
}

// Source is a document as it was written: one owner's resources from any number of files.
type Source struct {
	// Document holds what could be read. A resource that is named twice is there once.
	Document *lbdv1.Document

	problems []Problem
	// Files by their order.
	files map[string]int
	// Where each path was written.
	places map[string]place
	// Paths that could not be read, or that a misspelt field means; the rules' complaints about them are left out.
	unread map[string]bool
	// Mappings that hold such a path, at any depth.
	holders map[string]bool
	// A file was no YAML: what the rules say of the rest would be guesses.
	unreadable bool
	// Contents to be read from elsewhere.
	contents []content
	// What messages call the text of those that were read, by their path.
	read        map[string]string
	aliasValues int
}

// place is where a field was written. A scalar is complained about at its value, everything else at its key.
type place struct {
	key, value Position
	scalar     bool
}

// Parse reads files as one document. It never fails: what is wrong is in Report.
func Parse(files []File) *Source {
	s := newSource(files)
	documents := 0
	for _, f := range files {
		documents += s.parseFile(f)
	}
	if documents == 0 && len(s.problems) == 0 {
		name := "document"
		if len(files) > 0 {
			name = files[0].Name
		}
		s.unreadable = true
		s.problem(Position{name, 1, 1}, "", "there is no document here: it starts with `api_version: "+state.APIVersion+"`")
	}
	return s
}

// ParseExport reads files whose documents may belong to different owners, as an export's do, each for itself.
func ParseExport(files []File) []*Source {
	var all []*Source
	for _, f := range files {
		d := yaml.NewDecoder(bytes.NewReader(f.Data))
		for {
			var n yaml.Node
			err := d.Decode(&n)
			if errors.Is(err, io.EOF) {
				break
			}
			if err == nil && empty(&n) {
				continue
			}
			s := newSource(files)
			all = append(all, s)
			if err != nil {
				s.unreadable = true
				s.problem(syntaxPosition(f, err), "", syntaxMessage(f, err))
				break
			}
			s.merge(f, n.Content[0])
		}
	}
	return all
}

func newSource(files []File) *Source {
	s := &Source{
		Document: &lbdv1.Document{},
		files:    map[string]int{},
		places:   map[string]place{},
		unread:   map[string]bool{},
		holders:  map[string]bool{},
		read:     map[string]string{},
	}
	for i, f := range files {
		s.files[f.Name] = i
	}
	return s
}

// parseFile reads the documents of one file and counts them.
func (s *Source) parseFile(f File) (documents int) {
	d := yaml.NewDecoder(bytes.NewReader(f.Data))
	for {
		var n yaml.Node
		err := d.Decode(&n)
		if errors.Is(err, io.EOF) {
			return documents
		}
		if err != nil {
			s.unreadable = true
			s.problem(syntaxPosition(f, err), "", syntaxMessage(f, err))
			return documents
		}
		if empty(&n) {
			continue
		}
		documents++
		s.merge(f, n.Content[0])
	}
}

// empty tells a document of which there are only comments.
func empty(n *yaml.Node) bool {
	return len(n.Content) == 0 || n.Content[0].ShortTag() == "!!null"
}

// merge decodes one document and adds it to the whole.
func (s *Source) merge(f File, n *yaml.Node) {
	if _, ok := s.places[""]; !ok {
		s.places[""] = place{key: at(f, n), value: at(f, n)}
	}
	d := decoder{source: s, file: f, said: map[string]bool{}}
	part := &lbdv1.Document{}
	if !d.message(n, part.ProtoReflect(), "") {
		return
	}
	switch {
	case part.ApiVersion == "":
		d.missing(n, "api_version", "api_version is required: "+state.APIVersion)
	case part.ApiVersion != state.APIVersion:
		d.refuse(n, "api_version", fmt.Sprintf("unknown api_version %s (%s)", quote(part.ApiVersion), state.APIVersion))
		part.ApiVersion = ""
	}
	whole := s.Document
	switch {
	case part.Owner == "":
		d.missing(n, "owner", "owner is required: whose resources these are")
		part.Owner = whole.Owner
	case whole.Owner != "" && part.Owner != whole.Owner:
		d.refuse(n, "owner", fmt.Sprintf("owner is %s here and %s at %s: the documents of one call belong to one owner",
			quote(part.Owner), quote(whole.Owner), s.Position("owner")))
		part.Owner = whole.Owner
	}
	if part.ClusterSettings != nil && whole.ClusterSettings != nil {
		d.refuse(n, "cluster_settings", "cluster_settings are given already, at "+s.Position("cluster_settings").String())
		part.ClusterSettings = nil
	}
	part.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if !fd.IsList() {
			whole.ProtoReflect().Set(fd, v)
			return true
		}
		for i := range v.List().Len() {
			whole.ProtoReflect().Mutable(fd).List().Append(v.List().Get(i))
		}
		return true
	})
}

// Position is where a field was written; for one that was not, where the nearest mapping around it was.
func (s *Source) Position(path string) Position {
	for ; path != ""; path = parent(path) {
		p, ok := s.places[path]
		switch {
		case !ok:
		case p.scalar:
			return p.value
		default:
			return p.key
		}
	}
	return s.places[""].key
}

func (s *Source) problem(at Position, field, message string) {
	s.problems = append(s.problems, Problem{Position: at, Field: field, Message: message})
}

// failed notes that the field could not be read and says why.
func (s *Source) failed(at Position, path, message string) {
	s.unread[path] = true
	s.hold(parent(path))
	s.problem(at, path, message)
}

// hold notes that something in the mapping at path could not be read.
func (s *Source) hold(path string) {
	for ; path != ""; path = parent(path) {
		s.holders[path] = true
	}
	s.holders[""] = true
}

func at(f File, n *yaml.Node) Position {
	return Position{f.Name, n.Line, n.Column}
}

var (
	syntaxLine  = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)
	syntaxAlias = regexp.MustCompile(`unknown anchor '([^']*)'`)
)

// parserError is how the library's errors begin that are not its scanner's.
const parserError = "did not find expected"

// syntaxPosition finds the place of a parser's error, which names a line at best.
func syntaxPosition(f File, err error) Position {
	p := Position{f.Name, 1, 1}
	if m := syntaxAlias.FindStringSubmatch(err.Error()); m != nil {
		if i := bytes.Index(f.Data, []byte("*"+m[1])); i >= 0 {
			p.Line += bytes.Count(f.Data[:i], []byte("\n"))
			p.Column = i - bytes.LastIndexByte(f.Data[:i], '\n')
		}
		return p
	}
	m := syntaxLine.FindStringSubmatch(err.Error())
	if m == nil || m[1] == "" {
		return p
	}
	p.Line, _ = strconv.Atoi(m[1])
	if strings.Contains(err.Error(), parserError) {
		p.Line++ // the library counts from 0 here
	}
	text := line(f, p.Line)
	p.Column += len(text) - len(strings.TrimLeft(text, " \t"))
	return p
}

func syntaxMessage(f File, err error) string {
	message := "not YAML: " + syntaxLine.ReplaceAllString(err.Error(), "")
	if strings.HasPrefix(line(f, syntaxPosition(f, err).Line), "\t") {
		message += " (YAML is indented by spaces, not tabs)"
	}
	return message
}

// line is the text of a line, counted from 1.
func line(f File, number int) string {
	lines := bytes.Split(f.Data, []byte("\n"))
	if number < 1 || number > len(lines) {
		return ""
	}
	return string(lines[number-1])
}
