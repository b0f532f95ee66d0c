package document

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	lbdv1 "lbd/proto/lbd/v1"
)

// flowColumnsMax is how long a line may be that someone wrote as one.
const flowColumnsMax = 140

// ErrLayout refuses a document whose layout cannot be changed without losing something.
var ErrLayout = errors.New("cannot be laid out anew without losing something of it: it stays as it is")

// Layout writes a YAML file in the one layout: fields in the schema's order, two spaces a level, what was written on one
// line still on one. Comments, quotes, anchors and blank lines between things stay. Laid out again it is the same.
//
// The result is proven to mean what the file meant; where it would not the error is ErrLayout. A file that is no YAML is
// refused, too, with what the parser said.
func Layout(f File) ([]byte, error) {
	nodes, err := parsed(f)
	if err == nil && !slices.ContainsFunc(nodes, func(n *yaml.Node) bool { return !empty(n) }) {
		return f.Data, nil // only comments
	}
	meant := Parse([]File{f})
	if meant.unreadable || slices.ContainsFunc(nodes, func(n *yaml.Node) bool { return !empty(n) && n.Content[0].Kind != yaml.MappingNode }) {
		return nil, layoutError{meant.problems[0]}
	}
	for _, ordered := range []bool{true, false} { // an alias must not come to stand before its anchor
		text := f.Data
		for range layoutRoundsMax {
			next, err := layout(File{Name: f.Name, Data: text}, ordered)
			if err != nil {
				break
			}
			if bytes.Equal(next, text) && same(f, meant, next) {
				return next, nil
			}
			text = next
		}
	}
	return nil, fmt.Errorf("%s: %w", f.Name, ErrLayout)
}

// layoutError is a problem of a file that cannot be laid out.
type layoutError struct{ problem Problem }

func (e layoutError) Error() string { return e.problem.String() }

// LayoutProblem is an error of Layout as a problem of the file.
func LayoutProblem(f File, err error) Problem {
	var at layoutError
	if errors.As(err, &at) {
		return at.problem
	}
	return Problem{Position: Position{File: f.Name, Line: 1, Column: 1}, Message: ErrLayout.Error()}
}

// FirstDifference is the first line that a file does not have as another text has it.
func FirstDifference(f File, text []byte) Position {
	at := Position{File: f.Name, Line: 1, Column: 1}
	is, want := bytes.Split(f.Data, []byte("\n")), bytes.Split(text, []byte("\n"))
	for at.Line < min(len(is), len(want)) && bytes.Equal(is[at.Line-1], want[at.Line-1]) {
		at.Line++
	}
	return at
}

// layoutRoundsMax bounds how often a text is laid out until it stays the same: a comment may move once or twice.
const layoutRoundsMax = 5

// same tells whether a text says what the file said: resources, problems and comments.
func same(f File, meant *Source, text []byte) bool {
	is := Parse([]File{{Name: f.Name, Folder: f.Folder, Data: text}})
	if is.unreadable || !proto.Equal(meant.Document, is.Document) || len(meant.problems) != len(is.problems) {
		return false
	}
	count := map[string]int{}
	for _, c := range commentLines(f) {
		count[c]++
	}
	for _, c := range commentLines(File{Name: f.Name, Data: text}) {
		count[c]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	// The parser loses some comments: none that has a line of its own may be among them.
	for line := range strings.Lines(string(f.Data)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "#") && !bytes.Contains(text, []byte(line)) {
			return false
		}
	}
	return true
}

// commentLines are all comments of a file, line by line.
func commentLines(f File) []string {
	var all []string
	nodes, err := parsed(f)
	if err != nil {
		return nil
	}
	var collect func(n *yaml.Node)
	collect = func(n *yaml.Node) {
		for _, c := range []string{n.HeadComment, n.LineComment, n.FootComment} {
			for line := range strings.Lines(c) {
				if line = strings.TrimSpace(line); line != "" {
					all = append(all, line)
				}
			}
		}
		for _, e := range n.Content {
			collect(e)
		}
	}
	for _, n := range nodes {
		collect(n)
	}
	return all
}

// parsed are a file's documents, those without content too.
func parsed(f File) ([]*yaml.Node, error) {
	d := yaml.NewDecoder(bytes.NewReader(f.Data))
	var all []*yaml.Node
	for {
		n := &yaml.Node{}
		if err := d.Decode(n); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
}

// layout lays a file out once.
func layout(f File, ordered bool) ([]byte, error) {
	documents, err := parsed(f)
	if err != nil {
		return nil, err
	}
	w := &layoutWriter{ordered: ordered, inlines: map[*yaml.Node]string{}, lines: strings.Split(string(f.Data), "\n")}
	for i, n := range documents {
		if i > 0 {
			w.WriteString("---\n")
		}
		w.document(n)
	}
	return []byte(strings.TrimRight(w.String(), "\n") + "\n"), w.err
}

// layoutWriter writes nodes. It stops to matter at the first error.
type layoutWriter struct {
	strings.Builder
	ordered bool
	// The text that is laid out, for its blank lines.
	lines []string
	// Lists and mappings as one line, as each is asked for at every level around it.
	inlines map[*yaml.Node]string
	// A field whose comment stands before the list element that it is the first of.
	told *yaml.Node
	err  error
}

func (w *layoutWriter) document(n *yaml.Node) {
	w.comment(n.HeadComment, 0)
	if n.HeadComment != "" && len(n.Content) > 0 && n.Content[0].HeadComment == "" {
		w.WriteString("\n") // without it the comment would be the first field's
	}
	for _, root := range n.Content {
		w.comment(root.HeadComment, 0)
		if root.Kind == yaml.MappingNode && len(root.Content) > 0 {
			w.mapping(root, 0, (&lbdv1.Document{}).ProtoReflect().Descriptor())
		} else {
			w.WriteString(w.inline(root, nil) + "\n")
		}
		w.foot(root.FootComment, 0)
	}
	w.comment(n.FootComment, 0)
}

// comment writes whole lines.
func (w *layoutWriter) comment(text string, indent int) {
	if text == "" {
		return
	}
	for _, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			line = strings.Repeat(" ", indent) + line
		}
		w.WriteString(line + "\n")
	}
}

// head is comment before something whose column the cursor is at, and comes to be at again.
func (w *layoutWriter) head(text string, indent int) {
	if text == "" {
		return
	}
	first, rest, _ := strings.Cut(text, "\n")
	w.WriteString(strings.TrimSpace(first) + "\n")
	w.comment(rest, indent)
	w.WriteString(strings.Repeat(" ", indent))
}

// foot writes a comment that belongs to what is before it.
func (w *layoutWriter) foot(text string, indent int) {
	if text != "" {
		w.comment(text, indent)
		w.WriteString("\n")
	}
}

// blank keeps the blank line before a node.
func (w *layoutWriter) blank(n *yaml.Node) {
	if w.Len() == 0 || strings.HasSuffix(w.String(), "\n\n") || strings.HasSuffix(w.String(), "---\n") {
		return
	}
	first := n.Line - 2 // the line before it, counted from 0
	if n.HeadComment != "" {
		first -= strings.Count(n.HeadComment, "\n") + 1
	}
	if first >= 0 && first < len(w.lines) && strings.TrimSpace(w.lines[first]) == "" {
		w.WriteString("\n")
	}
}

// mapping writes a mapping's fields. The cursor is at the column indent of the first.
func (w *layoutWriter) mapping(n *yaml.Node, indent int, md protoreflect.MessageDescriptor) {
	for i, p := range w.fields(n, md) {
		if i > 0 {
			w.blank(p.key)
			w.WriteString(strings.Repeat(" ", indent))
		}
		if p.key != w.told {
			w.head(p.key.HeadComment, indent)
		}
		w.field(p, indent, inside(md, p.key.Value))
		w.foot(p.key.FootComment, indent)
	}
}

func (w *layoutWriter) field(p pair, indent int, md protoreflect.MessageDescriptor) {
	key := w.scalar(p.key, indent)
	room := flowColumnsMax - indent - utf8.RuneCountInString(key) - 2
	switch line := w.inline(p.value, md); {
	case w.isBlock(p.value, line, room):
		w.WriteString(key + ":" + anchor(p.value) + trailing(p.key, p.value) + "\n")
		w.WriteString(strings.Repeat(" ", indent+2))
		w.block(p.value, indent+2, md)
	case p.value.Kind == yaml.ScalarNode:
		w.WriteString(key + ": " + withComment(w.scalar(p.value, indent), trailing(p.key, p.value)) + "\n")
	default:
		w.WriteString(key + ": " + line + trailing(p.key, p.value) + "\n")
	}
	w.foot(p.value.FootComment, indent)
}

// block writes a list or mapping on lines of its own.
func (w *layoutWriter) block(n *yaml.Node, indent int, md protoreflect.MessageDescriptor) {
	if n.Kind == yaml.SequenceNode {
		w.items(n, indent, md)
		return
	}
	w.mapping(n, indent, md)
}

// items writes a list's elements. The cursor is at the column indent of the first.
func (w *layoutWriter) items(n *yaml.Node, indent int, md protoreflect.MessageDescriptor) {
	margin := strings.Repeat(" ", indent)
	for i, e := range n.Content {
		head := e.HeadComment
		if e.Kind == yaml.MappingNode && len(e.Content) > 0 && head == "" {
			head, w.told = e.Content[0].HeadComment, e.Content[0]
		}
		if i > 0 {
			w.blank(&yaml.Node{Line: e.Line, HeadComment: head})
			w.WriteString(margin)
		}
		w.head(head, indent)
		switch line := w.inline(e, md); {
		case w.isBlock(e, line, flowColumnsMax-indent-2) && anchor(e)+trailing(e) != "":
			w.WriteString("-" + anchor(e) + trailing(e) + "\n" + margin + "  ")
			w.block(e, indent+2, md)
		case w.isBlock(e, line, flowColumnsMax-indent-2):
			w.WriteString("- ")
			w.block(e, indent+2, md)
		case e.Kind == yaml.ScalarNode:
			w.WriteString("- " + withComment(w.scalar(e, indent), trailing(e)) + "\n")
		default:
			w.WriteString("- " + line + trailing(e) + "\n")
		}
		w.foot(e.FootComment, indent)
	}
}

// isBlock tells whether a list or mapping stands on lines of its own: as it was written so, or as it must.
func (w *layoutWriter) isBlock(n *yaml.Node, line string, room int) bool {
	if n.Kind != yaml.MappingNode && n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		return false
	}
	return n.Style&yaml.FlowStyle == 0 || utf8.RuneCountInString(line) > room || strings.Contains(line, "\n") || hasComment(n)
}

// hasComment tells whether something in a list or mapping has a comment: on one line there is no place for it.
func hasComment(n *yaml.Node) bool {
	return slices.ContainsFunc(n.Content, func(e *yaml.Node) bool {
		return e.HeadComment+e.LineComment+e.FootComment != "" || hasComment(e)
	})
}

// inline writes a node on one line, without comments. Of a list or mapping that is too long for one, it is tooLong.
func (w *layoutWriter) inline(n *yaml.Node, md protoreflect.MessageDescriptor) string {
	if n.Kind == yaml.ScalarNode || n.Kind == yaml.AliasNode {
		return w.scalar(n, 0)
	}
	line, known := w.inlines[n]
	if !known {
		line = w.collection(n, md)
		if utf8.RuneCountInString(line) > flowColumnsMax {
			line = tooLong
		}
		w.inlines[n] = line
	}
	return line
}

var tooLong = strings.Repeat("…", flowColumnsMax+1)

func (w *layoutWriter) collection(n *yaml.Node, md protoreflect.MessageDescriptor) string {
	var parts []string
	switch {
	case n.Kind == yaml.SequenceNode:
		for _, e := range n.Content {
			parts = append(parts, w.inline(e, md))
		}
		return strings.TrimSpace(anchor(n) + " [" + strings.Join(parts, ", ") + "]")
	case len(n.Content) == 0:
		return strings.TrimSpace(anchor(n) + " {}")
	}
	for _, p := range w.fields(n, md) {
		parts = append(parts, w.scalar(p.key, 0)+": "+w.inline(p.value, inside(md, p.key.Value)))
	}
	return strings.TrimSpace(anchor(n) + " { " + strings.Join(parts, ", ") + " }")
}

// fields are a mapping's fields in the schema's order; what it does not know comes last, merge keys first.
func (w *layoutWriter) fields(n *yaml.Node, md protoreflect.MessageDescriptor) []pair {
	var all []pair
	for i := 0; i+1 < len(n.Content); i += 2 {
		all = append(all, pair{key: n.Content[i], value: n.Content[i+1]})
		if n.Content[i].Kind != yaml.ScalarNode {
			w.err = fmt.Errorf("line %d: %w", n.Content[i].Line, ErrLayout)
		}
	}
	if !w.ordered || md == nil {
		return all
	}
	rank := func(p pair) int {
		switch fd := md.Fields().ByName(protoreflect.Name(p.key.Value)); {
		case p.key.ShortTag() == "!!merge":
			return -1
		case fd == nil:
			return md.Fields().Len()
		default:
			return fd.Index()
		}
	}
	slices.SortStableFunc(all, func(a, b pair) int { return rank(a) - rank(b) })
	return all
}

// inside is the message that a field holds, or a list's elements; nil for one that the schema does not know the inside of.
func inside(md protoreflect.MessageDescriptor, name string) protoreflect.MessageDescriptor {
	if md == nil {
		return nil
	}
	fd := md.Fields().ByName(protoreflect.Name(name))
	if fd == nil || len(Fields(fd)) == 0 {
		return nil
	}
	return fd.Message()
}

// scalar writes a scalar or an alias in its own style; one of several lines goes on at indent and two spaces.
func (w *layoutWriter) scalar(n *yaml.Node, indent int) string {
	bare := *n
	bare.HeadComment, bare.LineComment, bare.FootComment = "", "", ""
	if n.Kind == yaml.AliasNode {
		return "*" + n.Value
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	holder := &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{{Kind: yaml.ScalarNode, Value: "k"}, &bare}}
	if err := errors.Join(e.Encode(holder), e.Close()); err != nil {
		w.err = err
		return ""
	}
	text := strings.TrimSuffix(strings.TrimPrefix(b.String(), "k:"), "\n")
	first, rest, several := strings.Cut(strings.TrimPrefix(text, " "), "\n")
	if !several {
		return first
	}
	text = first
	for line := range strings.SplitSeq(rest, "\n") {
		if line != "" {
			line = strings.Repeat(" ", indent) + line
		}
		text += "\n" + line
	}
	return text
}

// withComment puts a comment at the end of a scalar's first line.
func withComment(text, comment string) string {
	first, rest, several := strings.Cut(text, "\n")
	if !several {
		return text + comment
	}
	return first + comment + "\n" + rest
}

// trailing are the comments at the ends of the lines of nodes that come to stand on one.
func trailing(nodes ...*yaml.Node) string {
	text := ""
	for _, n := range nodes {
		if n.LineComment != "" {
			text += " " + strings.ReplaceAll(n.LineComment, "\n", " ")
		}
	}
	return text
}

// anchor names a list or mapping; a scalar's is part of it.
func anchor(n *yaml.Node) string {
	if n.Anchor == "" || n.Kind == yaml.ScalarNode {
		return ""
	}
	return " &" + n.Anchor
}
