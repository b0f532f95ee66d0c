package main

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net"
	"net/http"
)

// backend answers with the digest of what it is sent, and sends a WebSocket's bytes back.
type backend struct {
	address string
	server  *http.Server
}

func startBackend() (*backend, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &backend{address: l.Addr().String(), server: &http.Server{Handler: http.HandlerFunc(answer)}}
	go func() { _ = b.server.Serve(l) }()
	return b, nil
}

func (b *backend) close() { _ = b.server.Close() } // the process is about to end

func answer(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "" {
		h := sha256.New()
		if _, err := io.Copy(h, r.Body); err != nil {
			return
		}
		_, _ = io.WriteString(w, hex.EncodeToString(h.Sum(nil)))
		return
	}
	c, rw, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
	_, _ = io.Copy(c, rw)
}
