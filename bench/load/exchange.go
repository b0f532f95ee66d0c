//go:build linux

package load

import (
	"bytes"
	"fmt"
	"time"
)

// The exchanges that are more than a GET and its answer.

// tunnelKey is RFC 6455's own example: a proxy passes it on, and the backend answers it.
const tunnelKey = "dGhlIHNhbXBsZSBub25jZQ=="

// message is what goes through a tunnel and comes back: a websocket frame with 32 masked bytes.
var message = append([]byte{0x82, 0x80 | 32, 1, 2, 3, 4}, bytes.Repeat([]byte{0x5a}, 32)...)

// upgrade makes the connection a tunnel.
func (c *client) upgrade() error {
	if _, err := c.stream.Write(c.flow.requests[c.host]); err != nil {
		return err
	}
	rest, head, err := c.readHead(c.buffer())
	if err != nil {
		return err
	}
	status, err := parseStatus(head)
	switch {
	case err != nil:
		return err
	case status != 101:
		return statusError(status)
	case len(rest) > 0:
		return errBody
	}
	return nil
}

// echo sends a message and compares what comes back.
func (c *client) echo() error {
	if _, err := c.stream.Write(message); err != nil {
		return err
	}
	return c.compare(nil, message)
}

// uploadPieces is how often a paced upload sends: ten times a second.
const uploadPieces = 10

// upload sends a request whose body takes its time.
func (c *client) upload() error {
	if _, err := c.stream.Write(c.flow.requests[c.host]); err != nil {
		return err
	}
	rest := c.flow.sends
	piece := len(rest)
	if c.flow.Pace > 0 {
		piece = max(1, c.flow.Pace/uploadPieces)
	}
	for len(rest) > 0 {
		n := min(piece, len(rest))
		if _, err := c.stream.Write(rest[:n]); err != nil {
			return err
		}
		if rest = rest[n:]; len(rest) == 0 {
			return nil
		}
		if err := c.pause(time.Second / uploadPieces); err != nil {
			return err
		}
	}
	return nil
}

// pause lets time pass, to the next sweep after it.
func (c *client) pause(d time.Duration) error {
	c.paused = time.Now().Add(d)
	return c.park(wantsTime)
}

// head is the request head of a kind, for one host.
func (f Flow) head(host string) []byte {
	method, fields := "GET", ""
	for _, field := range f.Fields {
		fields += field + "\r\n"
	}
	switch f.Kind {
	case Fresh, Resumed:
		fields += "Connection: close\r\n"
	case Tunnel, IdleTunnel:
		fields += "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + tunnelKey + "\r\n"
	case Upload:
		method = "POST"
		fields += fmt.Sprintf("Content-Length: %d\r\n", f.Sends)
	}
	return fmt.Appendf(nil, "%s /%d HTTP/1.1\r\nHost: %s\r\nUser-Agent: lab\r\nAccept: */*\r\n%s\r\n", method, f.Bytes, host, fields)
}
