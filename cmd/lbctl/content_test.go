package main

import (
	"os"
	"path/filepath"
	"testing"
)

// What is no PEM is refused before it is sent, and its file is named.
func TestContentIsNoPEM(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	der, wide, empty, text := write("c.der", "0\x82\x01\xff\x00"), write("c.txt", "\xff\xfe-\x00"), write("c.pem", "\ufeff \r\n"), write("t.pem", "-----BEGIN X\r\n")
	(&fakeNode{}).start(t)
	for _, c := range []struct{ chain, key, says string }{
		{der, text, der + " is not PEM: `openssl x509 -inform DER -in " + der + " -out F.pem` makes PEM of DER\n"},
		{text, der, der + " is not PEM: `openssl pkey -inform DER"},
		{wide, text, wide + " is not PEM, which is text and begins with -----BEGIN\n"},
		{text, empty, empty + " is empty\n"},
	} {
		lbctl("", "cert", "rotate", "certificates/shop", "--chain", c.chain, "--key", c.key).wants(t, 3, "", "error: "+c.says)
	}

	document := write("site.yaml", `api_version: lbd/v1
owner: web
certificates:
  - { name: a, pem: { chain: { file: c.der }, key: { file: c.der } } }
trust_bundles:
  - { name: b, ca: { file: c.der } }
  - { name: c, ca: { file: t.pem } }
`)
	o := lbctl("", "validate", "-f", document)
	o.wants(t, 3, "", ":4:38: error: file `"+der+"` is not PEM: `openssl x509 ")
	o.wants(t, 3, "", ":4:60: error: file `"+der+"` is not PEM: `openssl pkey ")
	o.wants(t, 3, "", ":6:28: error: file `"+der+"` is not PEM: `openssl x509 ")
	o.wants(t, 3, "", ": error: file `"+text+"` h")
}

// A folder of documents is no place for cases, and a number has its range.
func TestNoDocument(t *testing.T) {
	const cases = "- name: a\n  request: { url: http://a/ }\n"
	for _, verb := range [][]string{{"validate"}, {"fmt"}} {
		lbctl(cases, append(verb, "-f", "-")...).wants(t, 3, "", "stdin:1:1: error: this is a list of cases, no document: `lbctl test` reads it\n")
	}
	lbctl(shop+"    queue: { length: 99999999999 }\n", "validate", "-f", "-").wants(t, 3, "",
		"`length` must be a whole number from -2147483648 to 2147483647, not `99999999999`\n")
}
