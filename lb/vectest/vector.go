package vectest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Vector is one case: octets to send and what may come of it.
// The format is described in lb/testdata/vectors/README.md.
type Vector struct {
	ID, Kind, RFC, Why string
	Proto              string // "h1" and "h2" are sent by the client, "resp" by the backend
	Expect             Class
	Requests           int // at the backend: exactly so many for Forward, at most for all others
	Forbid             []string
	Absent, Present    []string
	MustClose          bool
	StatusNot          int

	// Segments are the octets of an h1 or resp vector; between two of them is a pause.
	Segments [][]byte
	// Fin: the sender half-closes at the end.
	Fin bool
	// Frames are the lines of an h2 vector, as they are written.
	Frames []string
}

// Class says what outcomes a vector allows.
type Class string

// The classes of the vectors' README.
const (
	Reject  Class = "reject-400"
	Reject5 Class = "reject-502"
	Forward Class = "forward-normalised"
	Either  Class = "either"
	Close   Class = "close"
)

// Load reads all vectors of a folder, in the order of their names.
func Load(dir string) ([]*Vector, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.vec"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no vectors in %s", dir)
	}
	slices.Sort(files)
	vectors := make([]*Vector, 0, len(files))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		v, err := parse(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		vectors = append(vectors, v)
	}
	return vectors, nil
}

// parse reads one file.
func parse(text string) (*Vector, error) {
	head, payload, found := strings.Cut(text, "\n---\n")
	if !found {
		return nil, fmt.Errorf("no line ---")
	}
	v := &Vector{}
	count := -1
	for _, line := range strings.Split(head, "\n") {
		key, value, found := strings.Cut(strings.TrimPrefix(line, "# "), ": ")
		if !found {
			return nil, fmt.Errorf("line %q has no key", line)
		}
		var err error
		switch key {
		case "backend":
			count, err = strconv.Atoi(value)
		case "status-not":
			v.StatusNot, err = strconv.Atoi(value)
		default:
			err = v.setText(key, value)
		}
		if err != nil {
			return nil, err
		}
	}
	v.Requests = count
	if count < 0 {
		v.Requests = 0
		if v.Expect == Forward || v.Expect == Either {
			v.Requests = 1
		}
	}
	return v, v.setPayload(payload)
}

func (v *Vector) setText(key, value string) (err error) {
	switch key {
	case "id":
		v.ID = value
	case "kind":
		v.Kind = value
	case "proto":
		v.Proto = value
	case "rfc":
		v.RFC = value
	case "why":
		v.Why = value
	case "expect":
		v.Expect = Class(value)
	case "forbid":
		v.Forbid = append(v.Forbid, value)
	case "absent":
		value, err = unescape(value)
		v.Absent = append(v.Absent, strings.ToLower(value))
	case "present":
		value, err = unescape(value)
		v.Present = append(v.Present, strings.ToLower(value))
	case "must-close":
		v.MustClose = value == "yes"
	default:
		err = fmt.Errorf("unknown key %q", key)
	}
	return err
}

var pause = regexp.MustCompile(`\{\{sleep \d+\}\}`)

func (v *Vector) setPayload(payload string) error {
	if v.Proto == "h2" {
		v.Frames = strings.Split(strings.TrimSuffix(payload, "\n"), "\n")
		return nil
	}
	text := strings.ReplaceAll(payload, "\n", "")
	text, v.Fin = strings.CutSuffix(text, "{{fin}}")
	for _, part := range pause.Split(text, -1) {
		octets, err := expand(part)
		if err != nil {
			return err
		}
		v.Segments = append(v.Segments, []byte(octets))
	}
	return nil
}

var repetition = regexp.MustCompile(`\{\{rep (.+?) (\d+)\}\}`)

// expand writes the repetitions out, then the escapes.
func expand(s string) (string, error) {
	s = repetition.ReplaceAllStringFunc(s, func(m string) string {
		parts := repetition.FindStringSubmatch(m)
		n, _ := strconv.Atoi(parts[2]) // the pattern has digits only
		return strings.Repeat(parts[1], n)
	})
	return unescape(s)
}

// unescape turns \r \n \t \0 \xNN into the octets they mean, and any other escaped character
// into itself.
func unescape(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch s[i] {
		case 'r':
			b.WriteByte('\r')
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case '0':
			b.WriteByte(0)
		case 'x':
			if i+3 > len(s) {
				return "", fmt.Errorf("escape cut short in %q", s)
			}
			octet, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
			if err != nil {
				return "", err
			}
			b.WriteByte(byte(octet))
			i += 2
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String(), nil
}
