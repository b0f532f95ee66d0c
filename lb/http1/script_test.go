package http1

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what the scripts in testdata print")

// TestScripts runs testdata/*.txt. A block there is a command, its input, a line "----" and
// what the command prints; blocks are parted by empty lines, comments begin with "#".
//
//	request|answer [limits]  what is understood
//	forward|relay [edit]     what goes on to the backend, to the client
//	body FRAMING [eof]       what is payload; each input line is one piece
//	path                     the normal form of each line
//	rules                    whether a rule "set NAME: VALUE" or "remove NAME" is taken
//
// Input lines end in CRLF and a head in an empty line, unless the command has "raw". \r \n \t
// \0 \xNN stand for octets.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { runScript(t, file) })
	}
}

func runScript(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	lines := strings.SplitAfter(string(text), "\n")
	for i := 0; i < len(lines); {
		if l := strings.TrimSpace(lines[i]); l == "" || l[0] == '#' {
			out.WriteString(lines[i])
			i++
			continue
		}
		block := &block{t: t, command: strings.Fields(lines[i])}
		first := i
		for i++; i < len(lines) && lines[i] != "----\n"; i++ {
			block.input = append(block.input, unescape(t, strings.TrimSuffix(lines[i], "\n")))
		}
		if i == len(lines) {
			t.Fatalf("%s:%d: no ----", file, first+1)
		}
		i++
		out.WriteString(strings.Join(lines[first:i], ""))
		var want strings.Builder
		for ; i < len(lines) && lines[i] != "\n"; i++ {
			want.WriteString(lines[i])
		}
		got := block.run()
		out.WriteString(got)
		if got != want.String() && !*update {
			t.Errorf("%s:%d: %s\ngot:\n%swant:\n%s", file, first+1, strings.Join(block.command, " "), got, want.String())
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

type block struct {
	t       *testing.T
	command []string
	input   []string
}

func (b *block) run() string {
	switch b.command[0] {
	case "request":
		return b.request()
	case "forward":
		return b.forward()
	case "answer":
		return b.answer()
	case "relay":
		return b.relay()
	case "body":
		return b.body()
	case "path":
		return b.path()
	case "rules":
		return b.rules()
	}
	b.t.Fatalf("unknown command %q", b.command[0])
	return ""
}

// arg returns what follows "name=" among the arguments; a bare name gives "yes".
func (b *block) arg(name string) string {
	for _, a := range b.command[1:] {
		if a == name {
			return "yes"
		}
		if v, found := strings.CutPrefix(a, name+"="); found {
			return v
		}
	}
	return ""
}

func (b *block) number(name string, otherwise int) int {
	v := b.arg(name)
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

func (b *block) octets() []byte {
	if b.arg("raw") != "" {
		return []byte(strings.Join(b.input, ""))
	}
	return []byte(strings.Join(append(b.input, "", ""), "\r\n"))
}

func (b *block) limits() *Limits {
	return &Limits{HeadBytes: b.number("head", DefaultLimits.HeadBytes), Fields: b.number("fields", DefaultLimits.Fields)}
}

func (b *block) request() string {
	octets, lim := b.octets(), b.limits()
	var r Request
	n, err := r.Parse(octets, lim)
	checkPrefixes(b.t, octets, lim, n, err)
	if err != nil {
		return describe(err)
	}
	return summary(&r)
}

func (b *block) forward() string {
	octets := b.octets()
	var r Request
	if _, err := r.Parse(octets, b.limits()); err != nil {
		return describe(err)
	}
	return visible(r.Append(nil, &RequestEdit{
		Host:             []byte(b.arg("host")),
		Path:             []byte(b.arg("path")),
		ClientAddress:    b.arg("client"),
		Scheme:           b.arg("scheme"),
		Port:             b.arg("port"),
		Trusted:          b.arg("trusted") != "",
		Forwarded:        b.arg("forwarded") != "",
		RequestID:        []byte(b.arg("id")),
		Via:              b.arg("via"),
		ClientCert:       []byte(b.arg("cert")),
		ClientCertChain:  []byte(b.arg("chain")),
		Rules:            b.compiled(),
		AllowUnderscores: b.arg("underscores") != "",
		Close:            b.arg("close") != "",
	}))
}

// asked is the request that an answer is for.
func (b *block) asked() *Request {
	head := "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	switch b.arg("to") {
	case "HEAD":
		head = "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"
	case "upgrade":
		head = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
	}
	r := &Request{}
	if _, err := r.Parse([]byte(head), &DefaultLimits); err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *block) answer() string {
	octets, lim := b.octets(), b.limits()
	var r Response
	n, err := r.Parse(octets, lim, b.asked())
	checkAnswerPrefixes(b.t, octets, lim, b.asked(), n, err)
	if err != nil {
		return describe(err)
	}
	return answerSummary(&r)
}

func (b *block) relay() string {
	var r Response
	if _, err := r.Parse(b.octets(), b.limits(), b.asked()); err != nil {
		return describe(err)
	}
	minor := b.number("minor", 1)
	return visible(r.Append(nil, &ResponseEdit{
		Framing:          r.ClientFraming(minor),
		Minor:            minor,
		Close:            b.arg("close") != "",
		Date:             []byte(strings.ReplaceAll(b.arg("date"), "_", " ")),
		Via:              b.arg("via"),
		Rules:            b.compiled(),
		AllowUnderscores: b.arg("underscores") != "",
	}))
}

// compiled are the rules that the arguments set:NAME=VALUE, add:NAME=VALUE, remove:NAME give.
func (b *block) compiled() *Rules {
	set, add := map[string]string{}, map[string]string{}
	var remove []string
	for _, a := range b.command[1:] {
		verb, rest, _ := strings.Cut(a, ":")
		name, value, _ := strings.Cut(rest, "=")
		switch verb {
		case "set":
			set[name] = value
		case "add":
			add[name] = value
		case "remove":
			remove = append(remove, name)
		}
	}
	if len(set)+len(add)+len(remove) == 0 {
		return nil
	}
	r, err := CompileRules(set, add, remove)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *block) body() string {
	var d Body
	switch kind := b.command[1]; kind {
	case "none":
		d.start(NoBody, -1, false)
	case "chunked":
		d.start(Chunked, -1, b.arg("answer") != "")
	case "close":
		d.start(UntilClose, -1, true)
	default:
		n, err := strconv.ParseInt(kind, 10, 64)
		if err != nil {
			b.t.Fatal(err)
		}
		d.start(Length, n, b.arg("answer") != "")
	}
	var out strings.Builder
	for _, piece := range b.input {
		data, n, err := d.Decode([]byte(piece))
		if err != nil {
			return out.String() + describe(err)
		}
		fmt.Fprintf(&out, "%q", data)
		if n < len(piece) {
			fmt.Fprintf(&out, " left %q", piece[n:])
		}
		if d.Done() {
			fmt.Fprintf(&out, " done")
		}
		if len(d.Trailer()) > 0 {
			fmt.Fprintf(&out, " trailer %q", d.Trailer())
		}
		out.WriteByte('\n')
	}
	if b.arg("eof") != "" {
		if err := d.EOF(); err != nil {
			return out.String() + describe(err)
		}
		out.WriteString("done\n")
	}
	return out.String()
}

func (b *block) path() string {
	var out strings.Builder
	for _, line := range b.input {
		p, slash, err := AppendPath(nil, []byte(line))
		if err != nil {
			out.WriteString(describe(err))
			continue
		}
		fmt.Fprintf(&out, "%s", p)
		if slash {
			fmt.Fprintf(&out, " (escaped slash)")
		}
		out.WriteByte('\n')
		if again, _, err := AppendPath(nil, p); err != nil || string(again) != string(p) {
			b.t.Errorf("%q normalises to %q, and that to %q (%v)", line, p, again, err)
		}
	}
	return out.String()
}

func (b *block) rules() string {
	var out strings.Builder
	for _, line := range b.input {
		var err error
		if name, found := strings.CutPrefix(line, "remove "); found {
			_, err = CompileRules(nil, nil, []string{name})
		} else {
			name, value, _ := strings.Cut(strings.TrimPrefix(line, "set "), ": ")
			_, err = CompileRules(map[string]string{name: value}, nil, nil)
			if _, err2 := CompileRules(nil, map[string]string{name: value}, nil); fmt.Sprint(err) != fmt.Sprint(err2) {
				b.t.Errorf("set says %v, add says %v", err, err2)
			}
		}
		if err != nil {
			fmt.Fprintln(&out, err)
			continue
		}
		out.WriteString("taken\n")
	}
	return out.String()
}

// describe prints an error as scripts show it.
func describe(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return fmt.Sprintf("%d %s\n", e.Status, e.Reason)
	}
	return err.Error() + "\n"
}

// summary prints what Parse understood, leaving out what is usual.
func summary(r *Request) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s %s", r.Method, r.Path)
	if r.Query != nil {
		fmt.Fprintf(&out, " query=%q", r.Query)
	}
	if r.HasHost {
		fmt.Fprintf(&out, " host=%s", r.Host)
	}
	if string(r.Authority) != string(r.Host) {
		fmt.Fprintf(&out, " authority=%s", r.Authority)
	}
	if r.Minor == 0 {
		out.WriteString(" 1.0")
	}
	if !r.KeepAlive {
		out.WriteString(" close")
	}
	fmt.Fprint(&out, framingText(r.Framing, r.Length))
	for _, f := range []struct {
		set  bool
		name string
	}{{r.EncodedSlash, "encoded-slash"}, {r.ExpectContinue, "expect-continue"}, {r.Upgrade, "upgrade"}, {r.Trailers, "trailers"}} {
		if f.set {
			out.WriteString(" " + f.name)
		}
	}
	out.WriteByte('\n')
	for name, value := range r.Fields.All() {
		if !strings.EqualFold(string(name), "host") {
			fmt.Fprintf(&out, "  %s: %q\n", name, value)
		}
	}
	return out.String()
}

func framingText(f Framing, length int64) string {
	switch f {
	case Length:
		return fmt.Sprintf(" length=%d", length)
	case Chunked:
		return " chunked"
	case UntilClose:
		return " until-close"
	}
	if length >= 0 {
		return fmt.Sprintf(" would-be-length=%d", length)
	}
	return ""
}

func answerSummary(r *Response) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%d %q", r.Status, r.Text)
	if r.Minor == 0 {
		out.WriteString(" 1.0")
	}
	if r.Interim() {
		out.WriteString(" interim")
	}
	if !r.KeepAlive {
		out.WriteString(" close")
	}
	out.WriteString(framingText(r.Framing, r.Length))
	if r.KeepAliveSeconds >= 0 {
		fmt.Fprintf(&out, " idle=%ds", r.KeepAliveSeconds)
	}
	out.WriteByte('\n')
	for name, value := range r.Fields.All() {
		fmt.Fprintf(&out, "  %s: %q\n", name, value)
	}
	return out.String()
}

// visible prints a head line by line; every line must end in CRLF, the last be empty.
func visible(head []byte) string {
	text, found := strings.CutSuffix(string(head), "\r\n\r\n")
	if !found {
		return fmt.Sprintf("no empty line: %q\n", head)
	}
	var out strings.Builder
	for _, line := range strings.Split(text, "\r\n") {
		q := strconv.Quote(line)
		out.WriteString(strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`) + "\n")
	}
	return out.String()
}

// unescape turns the escapes of a script line into the octets they mean.
func unescape(t *testing.T, s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	u, err := strconv.Unquote(`"` + strings.ReplaceAll(strings.ReplaceAll(s, `"`, `\"`), `\0`, `\x00`) + `"`)
	if err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return u
}
