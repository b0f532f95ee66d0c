package lb

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"lbd/lb/lbtest"
	"lbd/lb/loop"
)

// TestTLSFarewellWithAnswer: the close_notify comes in the segment of the last answer, be it a backend's or ours. TLS 1.2 shows a
// record's type.
func TestTLSFarewellWithAnswer(t *testing.T) {
	b := lbtest.New(t, lbtest.Echo)
	n := start(t, setup{kind: loop.KindEpoll, backends: addrs(b), tls: testTerminator(t), listener: ListenerConfig{HealthPath: "/healthy"}})
	last := func(request string) string { return strings.Replace(request, "\r\n", "\r\nConnection: close\r\n", 1) }
	for _, tc := range []struct {
		name, request string
		status        int
		reason        Reason
	}{
		{"no body", last(post("/", "")), 200, OK},
		{"a body of 100 bytes", last(post("/", strings.Repeat("x", 100))), 200, OK},
		{"half of what is kept", last(post("/", strings.Repeat("x", lastBytesMax/2))), 200, OK},
		{"the health path", last(get("/healthy")), 200, OK},
		{"a bad request", "NONSENSE\r\n\r\n", 400, BadRequest},
	} {
		raw := n.dial().Conn
		client := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
		if err := client.Handshake(); err != nil {
			t.Fatal(err)
		}
		before := segmentsIn(t, raw)
		if _, err := io.WriteString(client, tc.request); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(raw)
		if err != nil {
			t.Fatal(err)
		}
		var types []byte
		for rest := answer; len(rest) >= 5; rest = rest[min(len(rest), 5+int(binary.BigEndian.Uint16(rest[3:]))):] {
			types = append(types, rest[0])
		}
		if segments := segmentsIn(t, raw) - before; string(types) != "\x17\x15" || segments != 1 { // application data, alert
			t.Errorf("%s: records of types %v in %d segments", tc.name, types, segments)
		}
		n.want(tc.status, tc.reason)
	}
}

// segmentsIn counts the segments with data that a connection has received.
func segmentsIn(t *testing.T, c net.Conn) (n uint32) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	if failed := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); failed != nil {
		t.Fatal(failed)
	}
	if err != nil {
		t.Fatal(err)
	}
	return info.Data_segs_in
}
