package http1

import "math/bits"

// nameID is a field name that means something to a proxy.
type nameID uint8

const (
	nameOther     nameID = iota
	nameTwin             // a known name spelled with "_" for "-": never forwarded, never obeyed
	nameLooseTwin        // one of looseTwins spelled so: forwarded where underscores are allowed, never obeyed
	nameHost
	nameContentLength
	nameTransferEncoding
	nameConnection
	nameKeepAlive
	nameProxyConnection
	nameTE
	nameTrailer
	nameUpgrade
	nameHTTP2Settings
	nameExpect
	nameVia
	nameDate
	nameForwarded
	nameXForwardedFor
	nameXForwardedProto
	nameXForwardedHost
	nameXForwardedPort
	nameXRequestID
	nameClientCert
	nameClientCertChain
	nameEarlyData
	nameProxy
	nameProxyAuthenticate
	nameProxyAuthorization
	nameCount
)

var nameTexts = [nameCount]string{
	nameHost:               "host",
	nameContentLength:      "content-length",
	nameTransferEncoding:   "transfer-encoding",
	nameConnection:         "connection",
	nameKeepAlive:          "keep-alive",
	nameProxyConnection:    "proxy-connection",
	nameTE:                 "te",
	nameTrailer:            "trailer",
	nameUpgrade:            "upgrade",
	nameHTTP2Settings:      "http2-settings",
	nameExpect:             "expect",
	nameVia:                "via",
	nameDate:               "date",
	nameForwarded:          "forwarded",
	nameXForwardedFor:      "x-forwarded-for",
	nameXForwardedProto:    "x-forwarded-proto",
	nameXForwardedHost:     "x-forwarded-host",
	nameXForwardedPort:     "x-forwarded-port",
	nameXRequestID:         "x-request-id",
	nameClientCert:         "client-cert",
	nameClientCertChain:    "client-cert-chain",
	nameEarlyData:          "early-data",
	nameProxy:              "proxy",
	nameProxyAuthenticate:  "proxy-authenticate",
	nameProxyAuthorization: "proxy-authorization",
}

// nameSet is a set of nameIDs, one bit each.
type nameSet uint64

func (s nameSet) has(id nameID) bool { return s>>id&1 != 0 }

const (
	// thisHop are the fields that frame a message or belong to one connection. They are never
	// copied; what the next hop needs of them is written anew (RFC 9110 7.6.1). "Proxy" is no
	// registered field, but CGI turns it into HTTP_PROXY, and that into an attack.
	thisHop nameSet = 1<<nameTwin | 1<<nameLooseTwin | 1<<nameContentLength | 1<<nameTransferEncoding | 1<<nameConnection |
		1<<nameKeepAlive | 1<<nameProxyConnection | 1<<nameTE | 1<<nameUpgrade |
		1<<nameHTTP2Settings | 1<<nameProxyAuthenticate

	// ownRequest are request fields that only we may set towards a backend, or that we answer.
	ownRequest nameSet = 1<<nameHost | 1<<nameExpect | 1<<nameXForwardedFor | 1<<nameXForwardedProto |
		1<<nameXForwardedHost | 1<<nameXForwardedPort | 1<<nameXRequestID | 1<<nameClientCert |
		1<<nameClientCertChain | 1<<nameEarlyData | 1<<nameProxy | 1<<nameProxyAuthorization

	// looseTwins are fields whose other spelling can neither move the end of a message nor stand for somebody's identity.
	looseTwins nameSet = 1<<nameXForwardedFor | 1<<nameXForwardedProto | 1<<nameXForwardedHost | 1<<nameXForwardedPort |
		1<<nameXRequestID

	// unnamed are fields that a Connection option cannot take away: routing, framing and what
	// describes the connection itself.
	unnamed nameSet = 1<<nameHost | 1<<nameContentLength | 1<<nameTransferEncoding | 1<<nameConnection |
		1<<nameDate | 1<<nameVia

	// fixed are fields that a route's rules may not touch: to change one would lie about the
	// framing, the connection or a client's identity. Host is changed by the route's rewrite.
	fixed nameSet = thisHop | 1<<nameTrailer | 1<<nameHost | 1<<nameExpect | 1<<nameClientCert | 1<<nameClientCertChain |
		1<<nameEarlyData | 1<<nameProxy
)

// knownNames finds a name by its hash: open addressing, a slot holds a nameID.
var knownNames = func() (t [256]nameID) {
	for id := nameHost; id < nameCount; id++ {
		i := slot(hashName(nameTexts[id]))
		for t[i] != 0 {
			i++
		}
		t[i] = id
	}
	return t
}()

func slot(hash uint32) uint8 { return uint8(hash * 0x9e3779b1 >> 24) }

// hashName is the hash of the folded octets; Fields.add computes it as it goes.
func hashName[T string | []byte](name T) uint32 {
	h := uint32(0)
	for i := range len(name) {
		h = bits.RotateLeft32(h, 5) ^ uint32(fold[name[i]])
	}
	return h
}

// lookupName classifies a token with the hash that its folded octets have.
func lookupName(name []byte, hash uint32) nameID {
	for i := slot(hash); knownNames[i] != 0; i++ {
		id := knownNames[i]
		switch sameName(name, nameTexts[id]) {
		case sameSpelling:
			return id
		case sameTwin:
			if looseTwins.has(id) {
				return nameLooseTwin
			}
			return nameTwin
		}
	}
	return nameOther
}

// likeness is how alike two field names are.
type likeness uint8

const (
	different    likeness = iota
	sameTwin              // they differ in "_" and "-"
	sameSpelling          // they differ in case at most
)

// sameName compares two tokens.
func sameName[T string | []byte](a []byte, b T) likeness {
	if len(a) != len(b) {
		return different
	}
	like := sameSpelling
	for i, c := range a {
		if fold[c] != fold[b[i]] {
			return different
		}
		if (c == '_') != (b[i] == '_') {
			like = sameTwin
		}
	}
	return like
}
