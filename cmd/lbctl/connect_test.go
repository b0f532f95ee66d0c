package main

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	lbdv1 "lbd/proto/lbd/v1"
)

// setting is the environment of one run, beside which nothing of this machine counts.
func setting(t *testing.T, variables ...string) {
	t.Helper()
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(t.TempDir(), "config"))
	for _, name := range []string{"ENDPOINTS", "CA", "TOKEN", "TOKEN_FILE", "CERT", "KEY", "CONTEXT", "TIMEOUT"} {
		t.Setenv("LBCTL_"+name, "")
	}
	for _, v := range variables {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv("LBCTL_"+name, value)
	}
}

// echo answers WhoAmI with what the call came with.
func echo() *fakeNode {
	return &fakeNode{fakeIdentity: fakeIdentity{whoAmI: func(in login) (*lbdv1.WhoAmIResponse, error) {
		return &lbdv1.WhoAmIResponse{Author: strings.Join(in.authorization, "+") + "/" + in.certificate, Role: lbdv1.Role_ROLE_VIEWER}, nil
	}}}
}

func whoami(args ...string) outcome {
	return lbctl("", append([]string{"whoami", "-o", "name"}, args...)...)
}

func fileWith(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A node is known by its cluster's authority before anything is said to it.
func TestControlPort(t *testing.T) {
	ours, theirs := newCluster(t), newCluster(t)
	node := echo()
	good := node.port(t, ours.node(t))
	_, port, _ := net.SplitHostPort(good)
	elsewhere := echo().port(t, ours.leaf(t, &x509.Certificate{DNSNames: []string{"edge-1"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}))
	expired := echo().port(t, ours.leaf(t, &x509.Certificate{
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}))
	person := echo().port(t, ours.leaf(t, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}))
	const token = "lbt_k3v9_s3cret"
	forged := theirs.node(t)
	forged.Certificate[1] = ours.certificate.Raw // whoever has seen the authority can show it
	impostor := echo().port(t, forged)
	for name, c := range map[string]struct {
		endpoint, ca string
		code         int
		says         string
	}{
		"by pin":                         {good, ours.pin(), 0, "Bearer " + token + "/\n"},
		"by pin in capitals":             {good, "sha256:" + strings.ToUpper(ours.pin()[7:]), 0, "Bearer"},
		"by pin, whatever its name":      {"localhost:" + port, ours.pin(), 0, "Bearer"},
		"by pin, in another's name":      {elsewhere, ours.pin(), 0, "Bearer"},
		"by file":                        {good, ours.file(t), 0, "Bearer"},
		"by file, in another's name":     {elsewhere, ours.file(t), 4, "its certificate does not hold: "},
		"another cluster's, by pin":      {good, theirs.pin(), 4, "its certificate authority is " + ours.pin() + ", not " + theirs.pin() + " as LBCTL_CA says"},
		"another cluster's, by file":     {good, theirs.file(t), 4, "its certificate does not hold: certificate signed by unknown authority"},
		"with an authority it is not of": {impostor, ours.pin(), 4, "its certificate does not hold"},
		"expired":                        {expired, ours.pin(), 4, "expired"},
		"a person's certificate":         {person, ours.pin(), 4, "its certificate does not hold"},
		"no pin":                         {good, "sha256:abc", 2, "LBCTL_CA is no pin: want sha256: and 64"},
		"no file":                        {good, "/nowhere/ca.pem", 2, "read the certificate authority in LBCTL_CA: open /nowhere/ca.pem"},
		"no PEM":                         {good, fileWith(t, "x"), 2, "has no certificate in PEM"},
		"nothing to know it by":          {good, "", 2, "set LBCTL_CA to the cluster's pin"},
	} {
		t.Run(name, func(t *testing.T) {
			setting(t, "ENDPOINTS="+c.endpoint, "CA="+c.ca, "TOKEN="+token)
			if c.code == 0 {
				whoami().wants(t, 0, c.says, "")
				return
			}
			o := whoami()
			o.wants(t, c.code, "", c.says)
			if strings.Contains(o.stderr, "s3cret") {
				t.Errorf("the token is shown: %s", o.stderr)
			}
		})
	}
	if n := len(received[*lbdv1.WhoAmIRequest](node)); n != 4 {
		t.Errorf("%d calls came to the node, not 4", n)
	}
}

// What is no control port is told from one that is not there; a change does not wait for what will never be right.
func TestNoControlPort(t *testing.T) {
	ours := newCluster(t)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	web, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{ours.node(t)}})
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	for _, l := range []net.Listener{plain, web} {
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") // with TLS it is the handshake
				c.Close()
			}
		}()
	}
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	for address, says := range map[string]string{
		plain.Addr().String(): "no lbd node answers at " + plain.Addr().String(),
		web.Addr().String():   "it speaks TLS, but is no control port",
		gone.Addr().String():  "(connection refused): is it running, and is that its control port (`lbd run --control`)?",
	} {
		setting(t, "ENDPOINTS="+address, "CA="+ours.pin())
		whoami().wants(t, 7, "", says)
	}

	began := time.Now()
	setting(t, "ENDPOINTS="+echo().port(t, ours.node(t)), "CA="+newCluster(t).pin())
	lbctl(shop, "apply", "-f", "-").wants(t, 4, "", "not the cluster that was asked for, and no token was sent: ")
	if took := time.Since(began); took >= startGrace {
		t.Errorf("it took %v to see that the node is another cluster's", took)
	}
}

// Flags over environment over context over the local node, each for what the ones before leave open.
func TestWhereSettingsComeFrom(t *testing.T) {
	ours, theirs := newCluster(t), newCluster(t)
	first, second := echo().port(t, ours.node(t)), echo().port(t, ours.node(t))
	socket := filepath.Join(t.TempDir(), "control.sock")
	echo().serve(t, "unix", socket)
	cert, keyFile := theirs.person(t, "laptop")
	file := fileWith(t, "\nlbt_file_x\n")
	contexts := "current: here\ncontexts:\n" +
		"  - { name: here, endpoints: [\"" + first + "\"], ca: \"" + ours.pin() + "\", token: lbt_here_x }\n" +
		"  - { name: there, endpoints: [\"" + second + "\"], ca: \"" + ours.pin() + "\", token_file: " + file + " }\n" +
		"  - { name: open, endpoints: [\"" + second + "\"], ca: \"" + ours.pin() + "\" }\n" +
		"  - { name: gone, endpoints: [\"unix:/nowhere/gone.sock\"], ca: \"" + theirs.pin() + "\", token: lbt_gone_x }\n"
	for name, c := range map[string]struct {
		env, args string
		code      int
		says      string
	}{
		"the current context":                    {"", "", 0, "Bearer lbt_here_x/"},
		"a context of the environment":           {"CONTEXT=there", "", 0, "Bearer lbt_file_x/"},
		"a context of a flag over it":            {"CONTEXT=there", "--context here", 0, "Bearer lbt_here_x/"},
		"a context of a flag over variables":     {"ENDPOINTS=unix:/nowhere TOKEN=lbt_env_x", "--context here", 0, "Bearer lbt_here_x/"},
		"a variable for what that leaves open":   {"TOKEN=lbt_env_x", "--context open", 0, "Bearer lbt_env_x/"},
		"variables over the context":             {"TOKEN=lbt_env_x", "", 0, "Bearer lbt_env_x/"},
		"a file of the environment":              {"TOKEN_FILE=" + file, "", 0, "Bearer lbt_file_x/"},
		"endpoints of the environment":           {"ENDPOINTS=unix:/nowhere/env.sock", "", 7, "/nowhere/env.sock"},
		"endpoints of a flag over it":            {"ENDPOINTS=unix:/nowhere/env.sock", "--endpoints unix:/nowhere/flag.sock", 7, "/nowhere/flag.sock"},
		"a context vouches for other nodes":      {"ENDPOINTS=" + second, "", 0, "Bearer lbt_here_x/"},
		"but not for a socket":                   {"ENDPOINTS=unix:" + socket, "", 0, "/\n"},
		"nor for nodes that another pin names":   {"ENDPOINTS=" + second + " CA=" + ours.pin(), "", 0, "/\n"},
		"its own nodes have to fit a pin, too":   {"CA=" + theirs.pin(), "", 4, "as LBCTL_CA says"},
		"a token over a socket":                  {"ENDPOINTS=unix:" + socket + " TOKEN=lbt_env_x", "", 0, "Bearer lbt_env_x/"},
		"a certificate":                          {"ENDPOINTS=" + second + " CA=" + ours.pin() + " CERT=" + cert + " KEY=" + keyFile, "", 0, "/laptop\n"},
		"a token and a file":                     {"TOKEN=lbt_a_x TOKEN_FILE=" + file, "", 2, "the environment has a token and a file with one"},
		"a certificate without its key":          {"CERT=" + cert, "", 2, "without its key"},
		"a certificate that is not there":        {"CERT=/nowhere KEY=/nowhere", "", 2, "read the client certificate of LBCTL_CERT"},
		"a token that is none":                   {"TOKEN=hunter2", "", 2, "what LBCTL_TOKEN has is no token: want lbt_"},
		"a file with several lines":              {"TOKEN_FILE=" + fileWith(t, "lbt_a_b\nlbt_c_d\n"), "", 2, "is no token"},
		"a file that is not there":               {"TOKEN_FILE=/nowhere", "", 2, "read the token: open /nowhere"},
		"an unknown context":                     {"CONTEXT=nowhere", "", 2, "there is no context `nowhere`"},
		"an unknown context beside a whole rest": {"CONTEXT=nowhere ENDPOINTS=unix:" + socket, "", 2, "there is no context `nowhere`"},
	} {
		t.Run(name, func(t *testing.T) {
			setting(t, strings.Fields(c.env)...)
			home := filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "lbctl")
			if err := os.MkdirAll(home, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(home, "config.yaml"), []byte(contexts), 0o600); err != nil {
				t.Fatal(err)
			}
			o := whoami(strings.Fields(c.args)...)
			if c.code == 0 {
				o.wants(t, 0, c.says, "")
			} else {
				o.wants(t, c.code, "", c.says)
			}
			if strings.Contains(o.stderr, "hunter2") || strings.Contains(o.stderr, "_x") {
				t.Errorf("a token is shown: %s", o.stderr)
			}
		})
	}
}

// Of several endpoints the next one is asked where one cannot be reached, is another cluster's, or cannot do it now; a change is the
// same one each time.
func TestSeveralNodes(t *testing.T) {
	ours, theirs := newCluster(t), newCluster(t)
	says := func(version string, err error) *fakeNode {
		return &fakeNode{
			version: func() (*lbdv1.GetVersionResponse, error) { return &lbdv1.GetVersionResponse{Version: version}, nil },
			fakeIdentity: fakeIdentity{revokeToken: func(r *lbdv1.RevokeTokenRequest) (*lbdv1.RevokeTokenResponse, error) {
				return &lbdv1.RevokeTokenResponse{Token: &lbdv1.Token{Id: r.GetId()}}, err
			}},
		}
	}
	leaderless, err := status.New(codes.Unavailable, "no leader").WithDetails(&errdetails.ErrorInfo{Reason: "NO_LEADER", Domain: "lbd"},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	one, two := says("one", leaderless.Err()), says("two", nil)
	first, second := one.port(t, ours.node(t)), two.port(t, ours.node(t))
	stranger := says("stranger", nil).port(t, theirs.node(t))
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()

	setting(t, "CA="+ours.pin(), "ENDPOINTS="+gone.Addr().String()+","+second)
	lbctl("", "version").wants(t, 0, "two", "")
	hung, err := net.Listen("tcp", "127.0.0.1:0") // the kernel takes connections, and nobody answers
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	t.Setenv("LBCTL_ENDPOINTS", hung.Addr().String()+","+second)
	lbctl("", "version").wants(t, 0, "two", "")
	t.Setenv("LBCTL_ENDPOINTS", stranger+", "+second)
	lbctl("", "version").wants(t, 0, "two", "warning: "+stranger+" is left out: its certificate authority is ")

	t.Setenv("LBCTL_ENDPOINTS", first+","+gone.Addr().String()+","+second)
	lbctl("", "token", "revoke", "k3v9").wants(t, 0, "token k3v9 revoked\n", "")
	tried, done := received[*lbdv1.RevokeTokenRequest](one), received[*lbdv1.RevokeTokenRequest](two)
	if len(tried) != 1 || len(done) != 1 || tried[0].GetRequestId() == "" || tried[0].GetRequestId() != done[0].GetRequestId() {
		t.Errorf("asked %v, then %v", tried, done)
	}
	t.Setenv("LBCTL_ENDPOINTS", gone.Addr().String()+","+stranger)
	lbctl("", "token", "revoke", "k3v9").wants(t, 4, "", gone.Addr().String()+" (connection refused) or "+stranger+" (its certificate authority is ")
}

// Exit 4 says who was refused, why, and who can help.
func TestDenials(t *testing.T) {
	var code codes.Code
	var reason, message string
	node := &fakeNode{fakeIdentity: fakeIdentity{whoAmI: func(login) (*lbdv1.WhoAmIResponse, error) {
		s, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "lbd"})
		if err != nil {
			return nil, err
		}
		return nil, s.Err()
	}}}
	socket := node.start(t)
	setting(t, "ENDPOINTS=unix:"+socket, "TOKEN=lbt_k3v9_s3cret")
	for _, c := range []struct {
		code            codes.Code
		reason, message string
		says            []string
	}{
		{codes.Unauthenticated, "NO_CREDENTIAL", "this takes a token", []string{"this takes a token: set LBCTL_TOKEN", "lbctl token create"}},
		{codes.Unauthenticated, "BAD_CREDENTIAL", "the token `lbt_k3v9_…` is not known", []string{"is not known (the credential is from LBCTL_TOKEN)", "ask an admin"}},
		{codes.Unauthenticated, "CREDENTIAL_EXPIRED", "token ci (k3v9) expired at noon", []string{"expired at noon (the credential is from LBCTL_TOKEN)", "an admin makes it"}},
		{codes.PermissionDenied, "ROLE", "token ci (k3v9) has the role viewer, this takes editor", []string{"has the role viewer, this takes editor", "ask an admin"}},
		{codes.PermissionDenied, "OWNER", "token ci (k3v9) is bound to owner `a`", []string{"is bound to owner `a`", "lbctl whoami", "ask an admin"}},
		{codes.ResourceExhausted, "TOO_MANY_FAILURES", "too many failed logins: wait", []string{"wait (the credential is from LBCTL_TOKEN)"}},
	} {
		code, reason, message = c.code, c.reason, c.message
		o := whoami()
		for _, says := range c.says {
			o.wants(t, 4, "", says)
		}
		if strings.Contains(o.stderr, "s3cret") {
			t.Errorf("the secret is shown: %s", o.stderr)
		}
	}
	code, reason, message = codes.ResourceExhausted, "BUSY", "too many calls"
	whoami().wants(t, 7, "", "too many calls")
}
