package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdRaw says exactly what its words are on a connection in the clear, and checks the statuses of the answers. The words are
// Go strings without quotes: \r\n is a line end. The last word of the list may be "end": then the connection must end
// behind the last answer.
func cmdRaw(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, "raw HOST:PORT STATUS[,STATUS…][,end] TEXT…")
	c, err := net.Dial("tcp", args[0])
	ts.Check(err)
	defer c.Close()
	ts.Check(c.SetDeadline(time.Now().Add(patience)))
	for _, word := range args[2:] {
		text, err := strconv.Unquote(`"` + strings.ReplaceAll(word, `"`, `\"`) + `"`)
		ts.Check(err)
		_, err = io.WriteString(c, text)
		ts.Check(err)
	}
	want := strings.Split(args[1], ",")
	var got []string
	for r := bufio.NewReader(c); len(got) < len(want); {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			got = append(got, "end")
			break
		}
		body, err := io.ReadAll(resp.Body)
		ts.Logf("%s: %q, %v", resp.Status, body, err)
		got = append(got, strconv.Itoa(resp.StatusCode))
	}
	if !slices.Equal(got, want) {
		ts.Fatalf("answers %v, want %v", got, want)
	}
}

// misbehave does what a path like /if/NAME/sleep/1s asks of the backend of that name, and reports whether that was all. The
// others, and that one with another path, answer as usual.
func (b *backend) misbehave(w http.ResponseWriter, r *http.Request) bool {
	words := strings.Split(r.URL.Path, "/")
	if len(words) < 4 || words[1] != "if" || words[2] != b.name {
		return false
	}
	switch words[3] {
	case "reset":
		if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
		return true
	case "status":
		code, err := strconv.Atoi(words[4])
		if err != nil {
			code = http.StatusInternalServerError
		}
		w.WriteHeader(code)
		return true
	case "sleep":
		wait, _ := time.ParseDuration(words[4])
		select {
		case <-time.After(wait):
		case <-r.Context().Done():
		}
	}
	return false
}

// headers writes the head that has come, one field a line.
func headers(w http.ResponseWriter, r *http.Request) {
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		fmt.Fprintf(w, "%s: %s\n", name, strings.Join(r.Header[name], " | "))
	}
}
