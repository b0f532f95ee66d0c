package vectest

import (
	"math/rand/v2"
	"testing"
)

// TestRealRequests: a mutator that begins with broken requests would test nothing.
func TestRealRequests(t *testing.T) {
	for _, r := range realRequests {
		reqs, err := strict.requests([]byte(r.octets))
		if err != nil || len(reqs) != 1 {
			t.Errorf("%s: %d requests, %v", r.client, len(reqs), err)
		}
	}
}

// TestMutatorRepeats: the same seed makes the same.
func TestMutatorRepeats(t *testing.T) {
	vectors, err := Load("../testdata/vectors/A")
	if err != nil {
		t.Fatal(err)
	}
	seeds := seedsOf(vectors)
	a, b := &mutator{rand.New(rand.NewPCG(1, 2)), seeds}, &mutator{rand.New(rand.NewPCG(1, 2)), seeds}
	seen := map[string]bool{}
	for range 1000 {
		x, y := string(a.next("t")), string(b.next("t"))
		if x != y {
			t.Fatalf("%q\n%q", x, y)
		}
		seen[x] = true
	}
	if len(seen) < 700 {
		t.Errorf("only %d different ones in 1000", len(seen))
	}
}
