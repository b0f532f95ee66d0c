package lb

// Reason is how an exchange, or a connection that never came to one, ended. The words are part of the log and of the
// metrics, and stay.
type Reason uint8

// The reasons, each with whose doing it was.
const (
	// OK: the answer reached the client whole; a backend's 5xx is still OK.
	OK Reason = iota
	// ClientAborted: the client left in the middle of a request or of its answer.
	ClientAborted
	// ClientTimeout: the client was too slow with handshake, head or body, or did not read its answer.
	ClientTimeout
	// BadRequest: what the client sent is not HTTP (or not TLS) as we accept it.
	BadRequest
	// NoRoute: no route of the listener matches, or the one that does redirects to itself.
	NoRoute
	// NoBackend: the pool has no eligible backend.
	NoBackend
	// ConnectFailed: no connection to a backend could be made, after retries.
	ConnectFailed
	// BackendTimeout: the backend was too slow with its answer.
	BackendTimeout
	// BackendAborted: the backend closed, reset or sent what is not HTTP before its answer began.
	BackendAborted
	// BackendTruncated: the backend's answer ended before its announced end.
	BackendTruncated
	// QueueFull: the pool's queue for the backend had no place.
	QueueFull
	// QueueTimeout: the request waited too long there.
	QueueTimeout
	// Limited: a limit of the configuration refused it.
	Limited
	// Denied: a policy refused it, or the maintenance of its route.
	Denied
	// Drained: the node, the listener or the backend was going away.
	Drained
	// Shed: the node had no capacity left.
	Shed
	// Internal: our own fault.
	Internal

	reasonCount = iota
)

// detailKilled is the detail of what an operator has ended, which is Drained.
const detailKilled = "killed"

var reasonWords = [reasonCount]string{
	"ok", "client_aborted", "client_timeout", "bad_request", "no_route", "no_backend", "connect_failed", "backend_timeout",
	"backend_aborted", "backend_truncated", "queue_full", "queue_timeout", "limited", "denied", "drained", "shed", "internal",
}

// String returns the word of the log and of the metrics.
func (r Reason) String() string { return reasonWords[r] }

// Reasons returns every reason, in order: an exporter shows all of them from the start, not when they first happen.
func Reasons() []Reason {
	all := make([]Reason, reasonCount)
	for i := range all {
		all[i] = Reason(i)
	}
	return all
}
