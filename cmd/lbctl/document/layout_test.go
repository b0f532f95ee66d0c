package document

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

func TestLayout(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"order": {
			"routes: []\nowner: a\nzone: 1\npools:\n- backends: []\n  name: p\napi_version: lbd/v1\n",
			"api_version: lbd/v1\nowner: a\npools:\n  - name: p\n    backends: []\nroutes: []\nzone: 1\n",
		},
		"one line": {
			"pools:\n    - {backends: [{weight: 1, address: 'a:1'}], name: p, labels: {}}\n",
			"pools:\n  - { name: p, labels: {}, backends: [{ address: 'a:1', weight: 1 }] }\n",
		},
		"comments": {
			"# top\n\n# whose\nowner: a # me\npools: # all\n# first\n- name: p # p\n  # theirs\n  labels: # of p\n      # x\n      a: \"b\" # y\n\n# second\n- {name: q} # q\n# end\n",
			"# top\n\n# whose\nowner: a # me\npools: # all\n  # first\n  - name: p # p\n    # theirs\n    labels: # of p\n      # x\n      a: \"b\" # y\n\n  # second\n  - { name: q } # q\n  # end\n",
		},
		"comment in a line": {
			"pools: [{name: p, # why\n  backends: []}]\n",
			"pools:\n  - name: p # why\n    backends: []\n",
		},
		"too long a line": {
			"pools: [{name: p, labels: {a: " + strings.Repeat("x", 50) + ", b: " + strings.Repeat("y", 50) + ", c: z}}]\n",
			"pools:\n  - name: p\n    labels: { a: " + strings.Repeat("x", 50) + ", b: " + strings.Repeat("y", 50) + ", c: z }\n",
		},
		"blank lines": {
			"owner: a\n\n\npools:\n\n- name: p\n\n- name: q\n  labels: {}\n\n  backends: []\nroutes: []\n",
			"owner: a\n\npools:\n  - name: p\n\n  - name: q\n    labels: {}\n\n    backends: []\nroutes: []\n",
		},
		"text": {
			"certificates:\n- name: c\n  pem:\n    key: {env: K}\n    chain:\n      inline: |\n        # no comment\n          deeper\n\n        end\n",
			"certificates:\n  - name: c\n    pem:\n      chain:\n        inline: |\n          # no comment\n            deeper\n\n          end\n      key: { env: K }\n",
		},
		"documents":    {"owner: a\n---\n# b\nowner: b\n", "owner: a\n---\n# b\nowner: b\n"},
		"anchors":      {"pools:\n- &p {name: p}\nroutes: [*p]\n", "pools:\n  - &p { name: p }\nroutes: [*p]\n"},
		"alias first":  {"routes:\n- &p {name: p}\npools: [*p]\n", "routes:\n  - &p { name: p }\npools: [*p]\n"},
		"merge":        {"pools:\n- &p\n  labels: {}\n  name: p\n- name: q\n  <<: *p\n", "pools:\n  - &p\n    name: p\n    labels: {}\n  - <<: *p\n    name: q\n"},
		"only comment": {"# nothing\n", "# nothing\n"},
		"folded":       {"routes:\n- name: r\n  respond: {body: >-\n      a\n      b\n      , status: 200}\n", ""},
	} {
		got, err := Layout(File{Name: "f.yaml", Data: []byte(c.text)})
		if c.want == "" { // as long as it says so
			if err == nil && string(got) == c.text {
				t.Errorf("%s: nothing was done", name)
			}
			continue
		}
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, got, c.want)
		}
	}
	if _, err := Layout(File{Name: "f.yaml", Data: []byte("a: [\n")}); err == nil || !strings.HasPrefix(err.Error(), "f.yaml:") {
		t.Errorf("what is no YAML is laid out: %v", err)
	}
	if _, err := Layout(File{Name: "f.yaml", Data: []byte("# why\n- a\n")}); err == nil || !strings.Contains(err.Error(), "f.yaml:2:1: error: the document must be a mapping") {
		t.Errorf("what is no document is laid out: %v", err)
	}
	if _, err := Layout(File{Name: "f.yaml", Data: []byte("? [a]\n: b\n")}); !errors.Is(err, ErrLayout) {
		t.Errorf("a key that is a list is laid out: %v", err)
	}
}

// What is deep costs no more than what is long.
func TestLayoutOfDeepNesting(t *testing.T) {
	const depth = 2000
	text := "a: " + strings.Repeat("[", depth) + strings.Repeat("]", depth) + "\n"
	start := time.Now()
	if _, err := Layout(File{Name: "f.yaml", Data: []byte(text)}); err != nil && !errors.Is(err, ErrLayout) {
		t.Error(err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("%d levels took %v", depth, took)
	}
}

// What lbctl writes itself stays what it means when it is laid out, and then stays as it is.
func TestLayoutOfExports(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		doc := &lbdv1.Document{}
		fill(t, doc.ProtoReflect())
		doc.ApiVersion, doc.Owner = state.APIVersion, "owner"
		text, err := Layout(File{Name: "f.yaml", Data: Of(doc).YAML()})
		if err != nil {
			t.Fatalf("%v:\n%s", err, Of(doc).YAML())
		}
		if s := Parse([]File{{Name: "f.yaml", Data: text}}); !proto.Equal(s.Document, doc) {
			t.Fatalf("%s\nis laid out as\n%s", Of(doc).YAML(), text)
		}
	})
}

// FuzzLayout: whatever is laid out means the same, keeps its comments, and is laid out the same again.
func FuzzLayout(f *testing.F) {
	for _, pattern := range []string{"testdata/*.txtar", "../../../examples/*.yaml"} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			f.Fatalf("%s: no seeds: %v", pattern, err)
		}
		for _, p := range paths {
			text, err := os.ReadFile(p)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
		}
	}
	f.Add([]byte("# a\nowner: a # b\npools:\n# c\n- {name: p, backends: [{address: 'a:1'}]} # d\n\n# e\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		laid, err := Layout(File{Name: "f", Data: text})
		if err != nil {
			return
		}
		again, err := Layout(File{Name: "f", Data: laid})
		if err != nil || !bytes.Equal(laid, again) {
			t.Fatalf("%q is laid out as %q, then as %q: %v", text, laid, again, err)
		}
		if before, after := Parse([]File{{Name: "f", Data: text}}), Parse([]File{{Name: "f", Data: laid}}); !proto.Equal(before.Document, after.Document) {
			t.Fatalf("%q is laid out as %q", text, laid)
		}
	})
}
