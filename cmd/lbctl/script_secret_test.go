package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/rogpeppe/go-internal/testscript"
)

// cmdSecret looks for a private key in files and folders, in every form in which somebody could have written it; there must be none. With
// "!" there must be one, which is how a script shows that it looks at something.
func cmdSecret(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, false, args, 2, "secret KEY PATH…")
	text, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	forms := secretForms(ts, text)
	files, found := 0, []string{}
	for _, path := range args[1:] {
		ts.Check(filepath.WalkDir(ts.MkAbs(path), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			content, err := os.ReadFile(path)
			files++
			for _, plain := range unpacked(content) {
				for _, form := range slices.Sorted(maps.Keys(forms)) {
					if bytes.Contains(plain, forms[form]) {
						found = append(found, fmt.Sprintf("%s: as %s", path, form))
					}
				}
			}
			return err
		}))
	}
	switch {
	case files == 0:
		ts.Fatalf("no file was looked at")
	case neg && len(found) == 0:
		ts.Fatalf("the key is in none of %d files", files)
	case !neg && len(found) > 0:
		ts.Fatalf("the key is in\n%s", strings.Join(found, "\n"))
	}
}

// unpacked is a file's content, and what it is where it is compressed.
func unpacked(content []byte) [][]byte {
	all := [][]byte{content}
	for at := 0; ; {
		i := bytes.Index(content[at:], []byte{0x28, 0xb5, 0x2f, 0xfd}) // RFC 8878, section 3.1.1
		if i < 0 {
			return all
		}
		at += i
		if r, err := zstd.NewReader(bytes.NewReader(content[at:]), zstd.WithDecoderConcurrency(1)); err == nil {
			var plain bytes.Buffer
			_, _ = plain.ReadFrom(r) // as far as it goes
			r.Close()
			all = append(all, plain.Bytes())
		}
		at += 4
	}
}

// secretForms are spellings of a key of P-256.
func secretForms(ts *testscript.TestScript, text []byte) map[string][]byte {
	block, _ := pem.Decode(text)
	if block == nil {
		ts.Fatalf("no PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	ts.Check(err)
	scalar, err := key.(*ecdsa.PrivateKey).Bytes()
	ts.Check(err)
	forms := map[string][]byte{
		"DER":       block.Bytes,
		"raw":       scalar,
		"hex":       []byte(hex.EncodeToString(scalar)),
		"HEX":       []byte(strings.ToUpper(hex.EncodeToString(scalar))),
		"numbers":   []byte(strings.Trim(fmt.Sprint(scalar), "[]")),
		"PEM line":  []byte(strings.Split(string(text), "\n")[1]),
		"backwards": reversed(scalar), // as words of a big number lie in memory
	}
	for shift := range 3 { // base64 looks different at each of three alignments
		for name, encoding := range map[string]*base64.Encoding{"base64": base64.RawStdEncoding, "base64url": base64.RawURLEncoding} {
			words := encoding.EncodeToString(scalar[shift:])
			forms[fmt.Sprintf("%s+%d", name, shift)] = []byte(words[:len(words)-4])
		}
	}
	return forms
}

func reversed(b []byte) []byte {
	b = slices.Clone(b)
	slices.Reverse(b)
	return b
}
