package http1

// Limits bound what one message head may cost. A head at a limit is accepted, one over it
// refused with 431, or with 414 while still in the request line.
type Limits struct {
	HeadBytes int // from the first octet to the empty line, both included
	Fields    int // field lines
}

// DefaultLimits are what a listener has unless its document says otherwise, and what is
// asked of backends. 64 KiB takes the largest cookie jars seen in practice; 128 lines are
// twice what the chattiest browsers and meshes send.
var DefaultLimits = Limits{HeadBytes: 64 << 10, Fields: 128}

const (
	// methodBytesMax: the longest registered method has 17 letters (RFC 9112 3 wants 501 beyond).
	methodBytesMax = 32
	// hostBytesMax is the longest domain name in text, with its trailing dot.
	hostBytesMax = 254
	// connectionOptionsMax: each option is compared with every field; nobody sends more than four.
	connectionOptionsMax = 32
	// chunkLineBytesMax bounds a chunk-size line with its extensions and CRLF.
	chunkLineBytesMax = 1 << 10
	// extensionBytesMax is how far the octets of chunk extensions may run ahead of the payload
	// (RFC 9112 7.1.1 asks for a limit): cost without data is refused, a signature per large
	// chunk is not.
	extensionBytesMax = 8 << 10
	// trailerBytesMax and trailerFieldsMax bound the trailer section, which is kept until the
	// message ends.
	trailerBytesMax  = 8 << 10
	trailerFieldsMax = 32
)
