package state

import "fmt"

// Limits, for tests that reach them.
const (
	RevisionsKeptMin = revisionsKeptMin
	RevisionsKeptMax = revisionsKeptMax
	RequestsKeptMax  = requestsKeptMax
	UploadsMax       = uploadsMax

	TokensMax    = tokensMax
	AuditKeptMin = auditKeptMin
	AuditKeptFor = auditKeptFor

	OverridesMax        = overridesMax
	OverridesPoolMax    = overridesPoolMax
	OverridesOwnerMax   = overridesOwnerMax
	OverridesChangedMax = overridesChangedMax
)

// Index is the derived index as text, to compare.
func (s *State) Index() string {
	text := ""
	s.index.Root().Walk(func(k []byte, v int64) bool {
		if string(k[:min(len(k), 6)]) != "upload" { // numbers of uploads are each replica's own
			text += fmt.Sprintf("%q=%d\n", k, v)
		}
		return false
	})
	return text
}

// Uploads is how many changes are under way in parts.
func (s *State) Uploads() int { return len(s.uploads()) }

// Requests is how many requests are remembered.
func (s *State) Requests() int { return int(s.counter(requestIndex(""))) }
