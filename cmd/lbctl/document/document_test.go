package document

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

var update = flag.Bool("update", false, "rewrite the expected output of testdata")

// TestScripts reads each archive of testdata as one call: its *.yaml and *.json are the documents, in their order; other
// files can be named by them; "env" holds variables. "report" is what a person is told, "document" what was understood.
func TestScripts(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("testdata", "*.txtar"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) { runScript(t, path) })
	}
}

func runScript(t *testing.T, path string) {
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var files []File
	texts := map[string]string{}
	for _, f := range archive.Files {
		texts[f.Name] = string(f.Data)
		if slices.Contains(extensions, filepath.Ext(f.Name)) {
			files = append(files, File{Name: f.Name, Folder: filepath.Dir(f.Name), Data: f.Data})
		}
	}
	s := Parse(files)
	s.ReadContents(reader(texts), variables(texts["env"]))
	var report bytes.Buffer
	for _, p := range s.Report(state.Validate(nil, changeOf(s.Document))) {
		fmt.Fprintln(&report, p)
	}
	got := map[string][]byte{"report": report.Bytes(), "document": Of(s.Document).YAML()}
	for i, f := range archive.Files {
		out, expected := got[f.Name]
		switch {
		case !expected || bytes.Equal(f.Data, out):
		case *update:
			archive.Files[i].Data = out
		default:
			t.Errorf("%s is\n%s\nwant\n%s", f.Name, out, f.Data)
		}
	}
	if *update {
		if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func reader(texts map[string]string) func(string, int) ([]byte, error) {
	return func(path string, bytesMax int) ([]byte, error) {
		text, ok := texts[path]
		switch {
		case !ok:
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		case len(text) > bytesMax:
			return nil, errors.New("it is too long")
		}
		return []byte(text), nil
	}
}

func variables(lines string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for l := range strings.SplitSeq(lines, "\n") {
			if v, ok := strings.CutPrefix(l, name+"="); ok {
				return v, true
			}
		}
		return "", false
	}
}

func changeOf(doc *lbdv1.Document) *raftv1.ChangeCommand {
	ch := &raftv1.ChangeCommand{Owner: doc.GetOwner()}
	for _, r := range state.Resources(doc) {
		ch.Upserts = append(ch.Upserts, &raftv1.StoredResource{Resource: r})
	}
	return ch
}

// A few lines of YAML can stand for billions of values: reading them must end, and say why.
func TestAliasBombs(t *testing.T) {
	var merges strings.Builder
	merges.WriteString("api_version: lbd/v1\nowner: web\npools:\n  - &a0 { name: a }\n")
	for i := range 40 {
		fmt.Fprintf(&merges, "  - &a%d { <<: [*a%d, *a%d], name: a%d }\n", i+1, i, i, i)
	}
	var lists strings.Builder
	lists.WriteString("api_version: lbd/v1\nowner: web\nroutes:\n  - name: a\n    hosts: &h [" + strings.Repeat("a.example.com,", 2000) + "]\n")
	for i := range 2000 {
		fmt.Fprintf(&lists, "  - { name: r%d, hosts: *h }\n", i)
	}
	var merged strings.Builder
	merged.WriteString("api_version: lbd/v1\nowner: web\nroutes:\n  - &r\n    name: a\n    hosts: [" + strings.Repeat("a.example.com,", 2000) + "]\n")
	for i := range 2000 {
		fmt.Fprintf(&merged, "  - { <<: *r, name: r%d }\n", i)
	}
	for name, text := range map[string]string{
		"merged": merged.String(),
		"merges": merges.String(),
		"lists":  lists.String(),
		"itself": "api_version: lbd/v1\nowner: web\npools:\n  - &a { <<: [*a, *a, *a, *a], name: x }\n",
	} {
		s := Parse([]File{{Name: "bomb.yaml", Data: []byte(text)}})
		problems := s.Report(nil)
		if len(problems) == 0 || len(problems) > 100 {
			t.Errorf("%s: %d problems", name, len(problems))
			continue
		}
		read := 0
		for _, r := range s.Document.Routes {
			read += len(r.Hosts)
		}
		if read > 2*aliasValuesMax {
			t.Errorf("%s: %d values were read", name, read)
		}
	}
}

func TestReadFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"b.yaml": "b", "a.yml": "a", "c.json": "{}", "notes.txt": "no", "big.bin": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, err := ReadFiles([]string{dir, "-"}, strings.NewReader("from stdin"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		got = append(got, filepath.Base(f.Name)+"="+string(f.Data))
	}
	if want := []string{"a.yml=a", "b.yaml=b", "c.json={}", "stdin=from stdin"}; !slices.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}

	empty := t.TempDir()
	for _, path := range []string{empty, filepath.Join(empty, "missing.yaml")} {
		if _, err := ReadFiles([]string{path}, nil); err == nil || !strings.Contains(err.Error(), empty) {
			t.Errorf("%s: error %v does not name it", path, err)
		}
	}
	_, err = ReadFiles([]string{"-"}, bytes.NewReader(make([]byte, documentBytesMax+1)))
	if err == nil || !strings.Contains(err.Error(), "larger than 64 MiB") {
		t.Errorf("too large: error %v", err)
	}
	if _, err := ReadFile(filepath.Join(dir, "a.yml"), 0); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("too long: error %v", err)
	}
}

func TestPositionOfPaths(t *testing.T) {
	text := `api_version: lbd/v1
owner: web
routes:
  - name: "a"
    labels: { "x.y": z }
    listeners: [http, https]
    respond:
      status: 200
`
	s := Parse([]File{{Name: "f", Data: []byte(text)}})
	for path, want := range map[string]string{
		"":                                 "f:1:1",
		"owner":                            "f:2:8",
		"nothing":                          "f:1:1",
		`routes["a"]`:                      "f:4:5",
		`routes["a"].name`:                 "f:4:11",
		`routes["a"].labels["x.y"]`:        "f:5:22",
		`routes["a"].labels["none"]`:       "f:5:5",
		`routes["a"].listeners[1]`:         "f:6:23",
		`routes["a"].listeners[7]`:         "f:6:5",
		`routes["a"].respond`:              "f:7:5",
		`routes["a"].respond.body`:         "f:7:5",
		`routes["a"].respond.status`:       "f:8:15",
		`routes["a"].matches[0].path`:      "f:4:5",
		`routes["b"].matches[0].path`:      "f:3:1",
		`routes["[\"]"].matches[0].path`:   "f:3:1",
		`pools["shop"].backends[0].weight`: "f:1:1",
	} {
		if got := s.Position(path).String(); got != want {
			t.Errorf("%s is at %s, want %s", path, got, want)
		}
	}
}

func TestJSONPath(t *testing.T) {
	v := Of(&lbdv1.Resource{Owner: "web", Spec: &lbdv1.Resource_Pool{Pool: &lbdv1.Pool{
		Name:     "shop",
		Labels:   map[string]string{"a.b": "c"},
		Backends: []*lbdv1.Backend{{Address: "10.0.0.1:80"}, {Address: "10.0.0.2:80"}},
	}}})
	for path, want := range map[string]string{
		"{.owner}":                        "web",
		"owner":                           "web",
		"$.pool.name":                     "shop",
		"{.pool.backends[*].address}":     "10.0.0.1:80|10.0.0.2:80",
		"{.pool.backends[-1]['address']}": "10.0.0.2:80",
		"{.pool.backends[0]}":             `{"address":"10.0.0.1:80"}`,
		`{.pool.labels["a.b"]}`:           "c",
		"{.pool.backends[2].address}":     "",
		"{.pool.health_check.http.path}":  "",
		"{.pool.labels.none}":             "",
		"{.}":                             `{"owner":"web","pool":{"name":"shop","labels":{"a.b":"c"},"backends":[{"address":"10.0.0.1:80"},{"address":"10.0.0.2:80"}]}}`,
	} {
		p, err := ParsePath(path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		var got []string
		found, err := v.Select(p)
		if err != nil {
			t.Error(err)
		}
		for _, f := range found {
			got = append(got, f.String())
		}
		if g := strings.Join(got, "|"); g != want {
			t.Errorf("%s is %s, want %s", path, g, want)
		}
	}
	// A path that no such value has is told from one that has nothing now.
	for path, want := range map[string]string{
		"{.nothing.at.all}":        "there is no field `nothing`; fields here are ",
		"{.owner.text}":            "`text` is looked for in one value, `web`",
		"{.owner[*]}":              "stands where there is one value",
		"{.pool[0]}":               "stands where there is no list",
		"{.pool.backend}":          "there is no field `backend` (did you mean `backends`?)",
		"{.pool.backends.address}": "is looked for in a list: write `[*].address`",
	} {
		p, err := ParsePath(path)
		if err != nil {
			t.Fatal(err)
		}
		if found, err := v.Select(p); err == nil || !strings.Contains(err.Error(), want) || len(found) != 0 {
			t.Errorf("%s is %v, %v, want %s", path, found, err, want)
		}
	}
	for _, bad := range []string{"{.a", ".a..b", ".a[", ".a[x]", ".a['b]", ".[", "a.", "{.a} {.b}", "{.a}{.b}", ".a .b", "{.a[?(@.b==1)]}"} {
		if p, err := ParsePath(bad); err == nil {
			t.Errorf("%s: read as %v", bad, p)
		}
	}
}

// TestKeyInPlaceOfItsName: a private key where the name of a file or variable goes is not shown.
func TestKeyInPlaceOfItsName(t *testing.T) {
	for said, want := range map[string]string{
		"/etc/lbd/shop.key":       "`/etc/lbd/shop.key`",
		strings.Repeat("M", 184):  "of a name with 184 characters (not shown; a content goes under `inline`)",
		"-----BEGIN PRIVATE KEY":  "of a name with 22 characters (not shown; a content goes under `inline`)",
		"MIGHAgEA\nMBMGByqGSM49":  "of a name with 21 characters (not shown; a content goes under `inline`)",
		"SHOP_KEY":                "`SHOP_KEY`",
		strings.Repeat("/a", 50):  "`" + strings.Repeat("/a", 30) + "…`",
		strings.Repeat("/a", 51):  "of a name with 102 characters (not shown; a content goes under `inline`)",
		"a name with spaces.pem ": "`a name with spaces.pem `",
	} {
		if got := quoteName(said, said); got != want {
			t.Errorf("%q is shown as %q, want %q", said, got, want)
		}
	}
}
