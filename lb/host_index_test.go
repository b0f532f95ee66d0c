package lb

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestHostIndex compares it with a map: names that are there, those that are not, and entries that were changed.
func TestHostIndex(t *testing.T) {
	names := rapid.OneOf(rapid.StringMatching(`[ab]{0,3}`), rapid.StringMatching(`[a-z]{1,8}\.test`), rapid.Just(strings.Repeat("long.", 30)+"test"))
	numbers := rapid.OneOf(rapid.Uint32Range(0, 300), rapid.Just(uint32(math.MaxUint32)))
	rapid.Check(t, func(t *rapid.T) {
		puts := rapid.SliceOf(names).Draw(t, "puts")
		octets := 0
		for _, name := range puts {
			octets += len(name)
		}
		index, twin := newHostIndex(len(puts), octets), map[string]hostEntry{}
		for _, name := range puts {
			twin[name] = hostEntry{numbers.Draw(t, "form"), numbers.Draw(t, "route")}
			index.put(name, twin[name])
		}
		for _, name := range append(puts, rapid.SliceOf(names).Draw(t, "asked")...) {
			got, found := index.find([]byte(name))
			if want, there := twin[name]; got != want || found != there {
				t.Fatalf("%q: %v, %v, want %v, %v", name, got, found, want, there)
			}
		}
	})
}

// TestHostIndexFindsAll: among many names the hashes of some lead to one slot.
func TestHostIndexFindsAll(t *testing.T) {
	const n = 20_000
	name := func(i int) string { return fmt.Sprintf("h%d.test", i) }
	index := newHostIndex(n, n*len(name(n)))
	for i := range n {
		index.put(name(i), hostEntry{uint32(i), uint32(n - i)})
	}
	for i := range 2 * n {
		got, found := index.find([]byte(name(i)))
		if found != (i < n) || found && got != (hostEntry{uint32(i), uint32(n - i)}) {
			t.Fatalf("%s: %v, %v", name(i), got, found)
		}
	}
}
