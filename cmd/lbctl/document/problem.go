package document

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

// Position is a place in a document. Line and column count from 1; a column counts characters.
type Position struct {
	File         string
	Line, Column int
}

// String is file:line:column.
func (p Position) String() string {
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Problem is one cause for which a document is refused or warned of.
type Problem struct {
	Position Position
	Warning  bool
	// Field is the path, as in lbdv1.Violation; empty for what is not about a field.
	Field   string
	Message string
}

// String is the line that an operator reads and an editor jumps by.
func (p Problem) String() string {
	severity := "error"
	if p.Warning {
		severity = "warning"
	}
	return fmt.Sprintf("%s: %s: %s", p.Position, severity, p.Message)
}

// Invalid tells whether one of the problems is an error.
func Invalid(problems []Problem) bool {
	return slices.ContainsFunc(problems, func(p Problem) bool { return !p.Warning })
}

// Report lists what was found while reading together with violations found by the rules, in the order of the document,
// one message a cause: what could not be read is not judged, and a cause seen through several aliases is told once.
func (s *Source) Report(violations []*lbdv1.Violation) []Problem {
	all := slices.Clone(s.problems)
	for _, v := range violations {
		if s.unreadable || s.explained(v.GetField()) {
			continue
		}
		all = append(all, Problem{
			Position: s.Position(v.GetField()),
			Warning:  v.GetSeverity() == lbdv1.Severity_SEVERITY_WARNING,
			Field:    v.GetField(),
			Message:  s.sentence(v),
		})
	}
	slices.SortStableFunc(all, s.byPosition)
	all = slices.CompactFunc(all, func(a, b Problem) bool {
		return a.Position == b.Position && a.Warning == b.Warning && a.Message == b.Message
	})
	return together(all)
}

// together tells a warning that is the same at many places once: a listener that is defined elsewhere is one cause,
// however many routes use it. Errors stay apart, as each has a place to be mended at.
func together(all []Problem) []Problem {
	first := map[string]int{}
	var kept []Problem
	for _, p := range all {
		if i, told := first[p.Message]; told && p.Warning {
			kept[i].Message = p.Message + " (here and at other places)"
			continue
		}
		if p.Warning {
			first[p.Message] = len(kept)
		}
		kept = append(kept, p)
	}
	return kept
}

func (s *Source) byPosition(a, b Problem) int {
	return cmp.Or(
		cmp.Compare(s.files[a.Position.File], s.files[b.Position.File]),
		cmp.Compare(a.Position.Line, b.Position.Line),
		cmp.Compare(a.Position.Column, b.Position.Column),
		cmp.Compare(a.Message, b.Message),
	)
}

// explained tells whether a violation at path follows from something that was reported while reading: it is at or inside
// a field that could not be read, or at a mapping that holds one: of such a whole nothing can be said ("one of http, tcp
// is required" beside `htpp`).
func (s *Source) explained(path string) bool {
	if s.holders[path] {
		return true
	}
	for p := path; ; p = parent(p) {
		if s.unread[p] {
			return true
		}
		if p == "" {
			return false
		}
	}
}

// parent is the path of the mapping or list that holds the field; "" for a field of the document.
func parent(path string) string {
	if quoted, ok := strings.CutSuffix(path, `"]`); ok {
		// Inside the quotes every quote is escaped, so `["` is there only once.
		return quoted[:max(strings.LastIndex(quoted, `["`), 0)]
	}
	return path[:max(strings.LastIndexByte(path, '.'), strings.LastIndexByte(path, '['), 0)]
}

// predicate matches descriptions that are read after their field's path, as in "is required".
var predicate = regexp.MustCompile(`^(belongs|is|are|has|have|holds|must|needs|cannot|says|keeps|leaves|serves) `)

// sentence is a description that can stand without the path of its field.
func (s *Source) sentence(v *lbdv1.Violation) string {
	if predicate.MatchString(v.GetDescription()) {
		if read, ok := s.read[strings.TrimSuffix(v.GetField(), ".inline")]; ok {
			return read + " " + v.GetDescription()
		}
		return subject(v.GetField()) + " " + v.GetDescription()
	}
	return v.GetDescription()
}

// subject is what a message calls the field at path: the last word of it, or the resource.
func subject(path string) string {
	holder := parent(path)
	word := strings.TrimPrefix(path[len(holder):], ".")
	switch quoted, isIndex := strings.CutPrefix(word, "["); {
	case path == "":
		return "the document"
	case !isIndex:
		return quote(word)
	case quoted[0] != '"':
		return quote(strings.TrimPrefix(path[len(parent(holder)):], "."))
	default:
		name, err := strconv.Unquote(strings.TrimSuffix(quoted, "]"))
		if err != nil {
			name = quoted
		}
		if holder != "" && parent(holder) == "" {
			return state.Kind(holder).Singular() + " " + quote(name)
		}
		return quote(name)
	}
}

// child is the path of a field inside path.
func child(path, field string) string {
	if path == "" {
		return field
	}
	return path + "." + field
}

// quote shows a word of the document inside a message: printable and short.
func quote(word string) string {
	if utf8.RuneCountInString(word) > quotedRunesMax {
		word = string([]rune(word)[:quotedRunesMax]) + "…"
	}
	if strings.ContainsFunc(word, func(r rune) bool { return !unicode.IsPrint(r) || r == '`' }) {
		return strconv.Quote(word)
	}
	return "`" + word + "`"
}
