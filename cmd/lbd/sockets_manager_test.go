//go:build unix

package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// managedVariable makes a process of this test one that a service manager has started.
const managedVariable = "LBD_TEST_MANAGED"

// tellManaged prints what this process has got of the service manager, in the order of the descriptors, and what it makes of it.
func tellManaged() {
	var said bytes.Buffer
	h := inheritFromManager(slog.New(slog.NewTextHandler(&said, nil)))
	for _, s := range h.sockets {
		fmt.Printf("got %s %q %s\n", s.use.For, s.use.Name, s.bound)
	}
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		if _, there := os.LookupEnv(name); there {
			fmt.Println("left", name)
		}
	}
	for line := range strings.Lines(said.String()) {
		if strings.Contains(line, "level=WARN") {
			fmt.Print("warned ", line)
		}
	}
	h.close()
}

// managed starts a process with these files and this environment, LISTEN_PID being its own, and returns what it tells.
func managed(t *testing.T, files []*os.File, environment ...string) (got, left, warned []string) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, os.Args[0], "-test.run=^TestFromTheManager$")
	cmd.Env = append(append(os.Environ(), managedVariable+"=1"), environment...)
	cmd.ExtraFiles = files
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		what, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch what {
		case "got":
			got = append(got, rest)
		case "left":
			left = append(left, rest)
		case "warned":
			warned = append(warned, rest)
		}
	}
	return got, left, warned
}

// TestFromTheManager: each socket has its name, by its place; one without a name is taken all the same, and what is no listening socket, or is
// not there, is told of and costs the others nothing. The environment does not go on to children.
func TestFromTheManager(t *testing.T) {
	if os.Getenv(managedVariable) != "" {
		tellManaged()
		return
	}
	var files []*os.File
	var want []string // the addresses
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files, want = append(files, f), append(want, l.Addr().String())
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, c := range []struct {
		what        string
		files       []*os.File
		environment []string
		got, warned []string // parts of lines
	}{
		{"all with their names", files, []string{"LISTEN_FDS=3", "LISTEN_FDNAMES=http:https:control"},
			[]string{`spare "http" ` + want[0], `spare "https" ` + want[1], `spare "control" ` + want[2]}, nil},
		{"fewer names than sockets", files, []string{"LISTEN_FDS=3", "LISTEN_FDNAMES=http"},
			[]string{`spare "http" ` + want[0], `spare "" ` + want[1], `spare "" ` + want[2]}, nil},
		{"no names", files[:1], []string{"LISTEN_FDS=1"}, []string{`spare "" ` + want[0]}, nil},
		{"a file between them", []*os.File{files[0], null, files[1]}, []string{"LISTEN_FDS=3", "LISTEN_FDNAMES=http:odd:https"},
			[]string{`spare "http" ` + want[0], `spare "https" ` + want[1]}, []string{"name=odd"}},
		{"one that is missing", files[:1], []string{"LISTEN_FDS=2", "LISTEN_FDNAMES=http:gone"},
			[]string{`spare "http" ` + want[0]}, []string{"name=gone"}},
		{"more sockets than announced", files, []string{"LISTEN_FDS=1", "LISTEN_FDNAMES=http:https"}, []string{`spare "http" ` + want[0]}, nil},
		{"a number that is none", files, []string{"LISTEN_FDS=many"}, nil, []string{"LISTEN_FDS"}},
	} {
		got, left, warned := managed(t, c.files, c.environment...)
		if strings.Join(got, "\n") != strings.Join(c.got, "\n") || len(left) > 0 {
			t.Errorf("%s: it has %q, want %q; its children would get %q", c.what, got, c.got, left)
		}
		if !slices.EqualFunc(warned, c.warned, strings.Contains) {
			t.Errorf("%s: it warns of %q, want %q", c.what, warned, c.warned)
		}
	}
}
