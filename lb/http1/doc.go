// Package http1 reads and writes HTTP/1.x messages as a reverse proxy must: Request and
// Response are heads, Body takes the framing off what follows, Append writes a head for the
// next hop. It is pure: no I/O, no clock, no goroutine, and no allocation once the memory of
// its values is there.
//
//	head, incomplete?  r.Parse(buf, &limits)           read more while ErrIncomplete
//	body               r.StartBody(&d); d.Decode(buf)  until d.Done()
//	to the backend     r.Append(out, &RequestEdit{…})  and the body in r.Framing
//	its answer         a.Parse(buf, &limits, &r)       again while a.Interim()
//	to the client      a.Append(out, &ResponseEdit{Framing: a.ClientFraming(r.Minor), …})
//
// # One strict reading
//
// What RFC 9112 calls an error is one, and where it lets a recipient choose between refusing
// and mending, requests are refused: a bare LF, a bare CR, a folded line, two Content-Length
// of equal value, Content-Length beside Transfer-Encoding, several spaces in the request
// line. Every mending is a guess about what another reader will make of the same octets, and
// request smuggling is made of such guesses. Three things are mended: one empty line before a
// request, bad whitespace around chunk extensions, and, in answers, whitespace before a
// colon; there the RFC leaves no choice.
//
// What goes on is written anew, not copied with corrections: one Host, one framing with a
// normalised length, chunks without extensions, field lines as "name: value". So a second
// balancer would forward our octets unchanged, and the tests demand it.
//
// # Decisions
//
// A head is read line by line, and the place is kept: octets that come one at a time are
// looked at once, a fault is reported as soon as its line is there, and every prefix of a head
// is either incomplete or has the error of the whole. Searching for the empty line first would
// be as fast, but a client that sends "GET /\r\n" and waits would wait for a deadline.
//
// Field lines are kept as offsets into the caller's buffer, not as slices. The buffer may move
// while it grows, a line takes 24 octets instead of 56, and adjacent lines that stay go to the
// next hop in one copy.
//
// Names are hashed while they are checked, "_" counting as "-". The hash finds the two dozen
// names that a proxy must know, what Connection names and what a route's rules name, without
// comparing strings. A name that is known but for "_" is never obeyed and never forwarded:
// CGI, WSGI and others make the same variable of both spellings.
//
// The path is normalised once, and the same octets are matched and forwarded: escapes of
// unreserved octets decoded, others in upper case, octets that may not stand in a path
// escaped, dot segments resolved. Merging "//" was rejected, since it changes what some
// applications are asked for. An escaped slash is left to the route; a dot segment that
// appears only after decoding one, or after cutting off a ";parameter", is refused, because
// servers do both. The query is the backend's own and is not touched.
//
// Host takes names that could resolve, addresses and ports. RFC 3986 allows more octets in a
// name, and none of those has an honest use in a Host field.
//
// Decode moves the payloads of several chunks together inside the buffer that it was given,
// so that the caller has one piece to write whatever the sender cut it into. It uses up all
// that it gets: an unfinished line is kept in the Body, so nobody has to move left-overs about.
//
// An answer that ends with the backend's connection goes to the client in chunks: otherwise a
// cut could not be told from an end.
//
// The tests hold all of this against a second implementation that is written the obvious way
// (slow_test.go), and testdata/*.txt can be read as the semantics.
package http1
