package http1

// Name is a field name that is asked for often.
type Name struct {
	text string
	hash uint32
	id   nameID
}

// NewName prepares a name, in any case.
func NewName(name string) Name {
	hash := hashName(name)
	return Name{text: name, hash: hash, id: lookupName([]byte(name), hash)}
}

const (
	// unbelieved are request fields that nobody is believed, or that nobody behind us sees.
	unbelieved nameSet = 1<<nameTwin | 1<<nameLooseTwin | 1<<nameClientCert | 1<<nameClientCertChain | 1<<nameEarlyData |
		1<<nameProxy | 1<<nameProxyAuthorization
	// proxies are request fields in which only a proxy of ours is believed.
	proxies nameSet = 1<<nameForwarded | 1<<nameXForwardedFor | 1<<nameXForwardedProto | 1<<nameXForwardedHost |
		1<<nameXForwardedPort | 1<<nameXRequestID
)

// Next returns the index of the first line from i on that has the name, in any case, and that a decision about a request may
// rest on; -1 if there is none. Left out are fields that vouch for a client, fields that Connection names, since no backend
// sees them either, and, unless the peer is trusted, what only a proxy may say.
func (f *Fields) Next(i int, n *Name, trusted bool) int {
	if unbelieved.has(n.id) || !trusted && proxies.has(n.id) {
		return -1
	}
	for ; i < len(f.list); i++ {
		l := &f.list[i]
		if l.hash == n.hash && !l.named && sameName(f.Name(i), n.text) == sameSpelling {
			return i
		}
	}
	return -1
}
