package lb

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"strings"
	"testing"

	"lbd/lb/lbtest"
	"lbd/lb/loop"
)

// TestTLSFarewellWithAnswer: the close_notify comes in the segment of the last answer. TLS 1.2 shows a record's type.
func TestTLSFarewellWithAnswer(t *testing.T) {
	b := lbtest.New(t, lbtest.Echo)
	n := start(t, setup{kind: loop.KindEpoll, backends: addrs(b), tls: testTerminator(t)})
	for _, size := range []int{0, 100, lastBytesMax / 2} {
		raw := n.dial().Conn
		client := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
		request := strings.Replace(post("/", strings.Repeat("x", size)), "\r\n", "\r\nConnection: close\r\n", 1)
		if _, err := io.WriteString(client, request); err != nil {
			t.Fatal(err)
		}
		first := make([]byte, loop.BulkBytes)
		got, err := raw.Read(first)
		if err != nil {
			t.Fatal(err)
		}
		var types []byte
		for rest := first[:got]; len(rest) >= 5; rest = rest[min(len(rest), 5+int(binary.BigEndian.Uint16(rest[3:]))):] {
			types = append(types, rest[0])
		}
		if string(types) != "\x17\x15" { // application data, alert
			t.Errorf("a body of %d bytes: records of types %v", size, types)
		}
		if after, err := raw.Read(first); err != io.EOF {
			t.Errorf("%d more bytes, %v", after, err)
		}
		n.want(200, OK)
	}
}
