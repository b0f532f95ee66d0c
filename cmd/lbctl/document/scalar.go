package document

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	lbdv1 "lbd/proto/lbd/v1"
)

var durationName = (&durationpb.Duration{}).ProtoReflect().Descriptor().FullName()

func isDuration(fd protoreflect.FieldDescriptor) bool {
	return fd.Message() != nil && fd.Message().FullName() == durationName
}

var timeoutName = (&lbdv1.Timeout{}).ProtoReflect().Descriptor().FullName()

// isTimeout tells a length of time that may be switched off, by the word in disabled.
func isTimeout(fd protoreflect.FieldDescriptor) bool {
	return fd.Message() != nil && fd.Message().FullName() == timeoutName
}

const disabled = "disabled"

// scalar reads text, a whole number, true or false, or an enum's word. YAML's guesses are not taken for what they are
// not: a number where text is wanted is refused, as `1.10` would lose its zero.
func (d *decoder) scalar(n *yaml.Node, fd protoreflect.FieldDescriptor, path string) (protoreflect.Value, bool) {
	none := protoreflect.Value{}
	n, done, ok := d.follow(n, path)
	defer done()
	if !ok {
		return none, false
	}
	subject := subject(path)
	if n.Kind != yaml.ScalarNode {
		d.failed(n, path, fmt.Sprintf("%s must be %s, not a list or mapping", subject, wants(fd)))
		return none, false
	}
	tag := n.ShortTag()
	switch fd.Kind() {
	case protoreflect.StringKind:
		// YAML 1.1 takes 2026-01-02 for a time; later versions for text.
		if tag == "!!str" || tag == "!!timestamp" {
			return protoreflect.ValueOfString(n.Value), true
		}
		d.failed(n, path, subject+" must be text: put it in quotes")
		return none, false
	case protoreflect.BoolKind:
		if v, err := strconv.ParseBool(n.Value); err == nil && tag == "!!bool" {
			return protoreflect.ValueOfBool(v), true
		}
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		if v, ok := d.integer(n, fd, path); ok {
			return v, true
		}
	case protoreflect.EnumKind:
		if v, ok := number(fd.Enum(), n.Value); ok && tag == "!!str" {
			return protoreflect.ValueOfEnum(v), true
		}
		d.failed(n, path, fmt.Sprintf("unknown %s %s (%s)", enumNoun(fd), quote(n.Value), strings.Join(Words(fd.Enum()), ", ")))
		return none, false
	}
	if !d.said[path] {
		d.failed(n, path, fmt.Sprintf("%s must be %s, not %s", subject, wants(fd), written(n)))
	}
	return none, false
}

// enumNoun is what a field's words are: the field's name, or for a list, whose name is no noun of one, the enum's.
func enumNoun(fd protoreflect.FieldDescriptor) string {
	name := string(fd.Name())
	if fd.IsList() {
		name = snake(string(fd.Enum().Name()))
	}
	return strings.ReplaceAll(name, "_", " ")
}

// integer reads a decimal number. A zero that the schema cannot tell from an absent field would silently become the
// default.
func (d *decoder) integer(n *yaml.Node, fd protoreflect.FieldDescriptor, path string) (protoreflect.Value, bool) {
	bits := 32
	if fd.Kind() == protoreflect.Int64Kind {
		bits = 64
	}
	v, err := strconv.ParseInt(n.Value, 10, bits)
	if errors.Is(err, strconv.ErrRange) {
		most := int64(math.MaxInt64) >> (64 - bits)
		d.failed(n, path, fmt.Sprintf("%s must be a whole number from %d to %d, not %s", subject(path), -most-1, most, quote(n.Value)))
		return protoreflect.Value{}, false
	}
	if err != nil || n.ShortTag() != "!!int" {
		return protoreflect.Value{}, false
	}
	if v == 0 && !fd.HasPresence() && !fd.IsList() {
		d.failed(n, path, fmt.Sprintf("%s must not be 0: leave it out for its default", subject(path)))
		return protoreflect.Value{}, false
	}
	if bits == 32 {
		return protoreflect.ValueOfInt32(int32(v)), true
	}
	return protoreflect.ValueOfInt64(v), true
}

// lengthForm matches a length of time, however long.
var lengthForm = regexp.MustCompile(`^([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$`)

// duration reads a length of time with its unit, or that there is none where that may be.
func (d *decoder) duration(n *yaml.Node, m protoreflect.Message, fd protoreflect.FieldDescriptor, path string) {
	n, done, ok := d.follow(n, path)
	defer done()
	if !ok {
		return
	}
	if isTimeout(fd) && n.Kind == yaml.ScalarNode && n.Value == disabled {
		off := &lbdv1.Timeout{Limit: &lbdv1.Timeout_Disabled{Disabled: true}}
		m.Set(fd, protoreflect.ValueOfMessage(off.ProtoReflect()))
		return
	}
	v, err := time.ParseDuration(n.Value)
	if err != nil && lengthForm.MatchString(n.Value) {
		v, err = math.MaxInt64, nil // longer than any: the rules say how long it may be
	}
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" || err != nil || v < 0 {
		what := "a list or mapping"
		if n.Kind == yaml.ScalarNode {
			what = written(n)
		}
		d.failed(n, path, fmt.Sprintf("%s must be %s, not %s", subject(path), wants(fd), what))
		return
	}
	length := durationpb.New(v)
	if isTimeout(fd) {
		limit := &lbdv1.Timeout{Limit: &lbdv1.Timeout_Duration{Duration: length}}
		m.Set(fd, protoreflect.ValueOfMessage(limit.ProtoReflect()))
		return
	}
	m.Set(fd, protoreflect.ValueOfMessage(length.ProtoReflect()))
}

// written shows a scalar with the quotes that make it text.
func written(n *yaml.Node) string {
	if n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
		return quote(`"` + n.Value + `"`)
	}
	return quote(n.Value)
}

// wants says what a field takes.
func wants(fd protoreflect.FieldDescriptor) string {
	switch {
	case isDuration(fd):
		return "a length of time such as 5s, 500ms or 1h30m"
	case isTimeout(fd):
		return "a length of time such as 5s, 500ms or 1h30m, or `disabled`"
	case fd.Kind() == protoreflect.BoolKind:
		return "true or false"
	case fd.Kind() == protoreflect.Int32Kind, fd.Kind() == protoreflect.Int64Kind:
		return "a whole number"
	case fd.Kind() == protoreflect.EnumKind:
		return "one of " + strings.Join(Words(fd.Enum()), ", ")
	default:
		return "text"
	}
}
