//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// How each proxy is told of a change while it runs: by its live path where it has one.

// NGINX has no other way than a reload.

func rotateNginx(_ context.Context, b *bed, _ *proxy, _ certificateFiles) error {
	return b.reloadNginx()
}

func rerouteNginx(_ context.Context, b *bed, _ *proxy, _ string) error { return b.reloadNginx() }

func (b *bed) reloadNginx() error { return b.proxy.cmd.Process.Signal(unix.SIGHUP) }

// rotateHAProxy uses its runtime API.
func rotateHAProxy(ctx context.Context, b *bed, _ *proxy, files certificateFiles) error {
	content, err := os.ReadFile(files.Bundle)
	if err != nil {
		return err
	}
	for _, order := range []string{
		fmt.Sprintf("set ssl cert %s <<\n%s\n", files.Bundle, content),
		fmt.Sprintf("commit ssl cert %s\n", files.Bundle),
	} {
		text, err := b.orderHAProxy(ctx, order)
		if err != nil {
			return err
		}
		if !strings.Contains(text, "ransaction") && !strings.Contains(text, "Success") {
			return fmt.Errorf("haproxy refuses: %s", strings.TrimSpace(text))
		}
	}
	return nil
}

func rerouteHAProxy(ctx context.Context, b *bed, _ *proxy, old string) error {
	orders := []string{fmt.Sprintf("add map %s %s backends\n", b.setup.HostMap, b.setup.ExtraHost)}
	if old != "" {
		orders = append(orders, fmt.Sprintf("del map %s %s\n", b.setup.HostMap, old))
	}
	for _, order := range orders {
		text, err := b.orderHAProxy(ctx, order)
		if err != nil {
			return err
		}
		if text = strings.TrimSpace(text); text != "" {
			return fmt.Errorf("haproxy refuses: %s", text)
		}
	}
	return nil
}

// orderHAProxy sends one order and returns the answer.
func (b *bed) orderHAProxy(ctx context.Context, order string) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", b.setup.Dir+"/haproxy.sock")
	if err != nil {
		return "", err
	}
	_, err = io.WriteString(conn, order)
	answer, readErr := io.ReadAll(conn)
	return string(answer), errors.Join(err, readErr, conn.Close())
}

func rotateLbd(ctx context.Context, b *bed, p *proxy, files certificateFiles) error {
	return b.lab.lbctl(ctx, p, b.setup, "cert", "rotate", files.Name, "--chain", files.Chain, "--key", files.Key, "--wait")
}

func rerouteLbd(ctx context.Context, b *bed, p *proxy, _ string) error {
	return b.lab.lbctl(ctx, p, b.setup, "apply", "-f", b.setup.Dir+"/lbd.yaml", "--wait")
}

func rotateCaddy(ctx context.Context, b *bed, _ *proxy, _ certificateFiles) error {
	return b.loadCaddy(ctx)
}

func rerouteCaddy(ctx context.Context, b *bed, _ *proxy, _ string) error { return b.loadCaddy(ctx) }

// loadCaddy gives the whole configuration to Caddy's admin API, which is how it takes changes. It is told to look also at what has not
// changed in the text: a certificate's file has.
func (b *bed) loadCaddy(ctx context.Context) error {
	content, err := os.Open(filepath.Join(b.setup.Dir, "Caddyfile"))
	if err != nil {
		return err
	}
	defer content.Close()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/load", content)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "text/caddyfile")
	request.Header.Set("Cache-Control", "must-revalidate")
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", b.setup.Dir+"/caddy.sock")
	}}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return fmt.Errorf("caddy refuses: %s: %s", response.Status, said)
	}
	return nil
}

// Traefik watches its file.

func rotateTraefik(_ context.Context, b *bed, p *proxy, _ certificateFiles) error {
	return b.lab.configure(p, b.setup)
}

func rerouteTraefik(context.Context, *bed, *proxy, string) error { return nil }
