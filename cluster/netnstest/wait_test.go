//go:build linux

package netnstest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// caughtUpMax is how soon a node that was isolated serves what it missed.
const caughtUpMax = 3 * time.Second

// TestWaitsNameWhoIsMissing applies while a node is isolated: the wait says who has not answered, a wait for the reachable does not
// mind, and the node has it all soon after it is back.
func TestWaitsNameWhoIsMissing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, 0)
	leader, follower := c.leader(t), c.follower(t)
	c.Isolate(follower.host)
	apply := func(body string, wait string, code int) string {
		t.Helper()
		path := filepath.Join(c.dir, "waited.yaml")
		document := strings.ReplaceAll(waitedDocument, "BODY", body)
		if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
			t.Fatal(err)
		}
		stdout, stderr, got := leader.lbctl("apply", "-f", path, wait, "--timeout", "12s")
		if got != code {
			t.Errorf("apply %s: exit %d, want %d\n%s%s", wait, got, code, stdout, stderr)
		}
		return stderr
	}
	if said := apply("one", "--wait", 8); !strings.Contains(said, follower.name) {
		t.Errorf("%s is not named: %s", follower.name, said)
	}
	apply("two", "--wait=reachable", 0)
	c.Heal()
	healed := time.Now()
	eventually(t, follower.name+" serves what it missed", func() (bool, string) {
		body, err := get(c.front(follower.host), "/waited")
		if err != nil {
			return false, err.Error()
		}
		return body == "two", body
	})
	if took := time.Since(healed); took > caughtUpMax {
		t.Errorf("%s serves what it missed after %v, want at most %v", follower.name, took, caughtUpMax)
	} else {
		t.Logf("%s serves what it missed after %v", follower.name, took.Round(time.Millisecond))
	}
	c.settle(t)
	c.finish(t)
}

// waitedDocument is added to what the front serves.
const waitedDocument = `
api_version: lbd/v1
owner: web
routes: [{ name: waited, listeners: [https], matches: [{ path: { exact: /waited } }], respond: { status: 200, body: BODY } }]
`
