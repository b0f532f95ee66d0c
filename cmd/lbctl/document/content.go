package document

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	lbdv1 "lbd/proto/lbd/v1"
)

// content is one Content of the document and where it was written.
type content struct {
	message *lbdv1.Content
	path    string
	folder  string
	at      Position
}

// content remembers a Content for ReadContents, and reports one that names no source.
func (d *decoder) content(n *yaml.Node, m *lbdv1.Content, path string) {
	if m.Source == nil {
		d.missing(n, path, subject(path)+" needs one of file, env, inline, sha256")
		return
	}
	at := d.at(n)
	for i := 0; i+1 < len(n.Content); i += 2 {
		at = d.at(n.Content[i+1])
	}
	d.source.contents = append(d.source.contents, content{message: m, path: path, folder: d.file.Folder, at: at})
}

// ReadContents puts the text of files and environment variables in place of their names. What cannot be read is a
// problem like any other. Messages never show what was read.
func (s *Source) ReadContents(readFile func(path string, bytesMax int) ([]byte, error), getenv func(name string) (string, bool)) {
	for _, c := range s.contents {
		switch from := c.message.Source.(type) {
		case *lbdv1.Content_File:
			path := from.File
			if path == "" {
				continue // the rules say that it is empty
			}
			if !filepath.IsAbs(path) {
				path = filepath.Join(c.folder, path)
			}
			text, err := readFile(path, contentBytesMax)
			if err != nil {
				s.failed(c.at, c.path, fmt.Sprintf("file %s: %v", quoteName(from.File, path), cause(err)))
				continue
			}
			if fault := PEMFault(text, path, strings.HasSuffix(c.path, ".key")); fault != "" {
				s.failed(c.at, c.path, fmt.Sprintf("file %s %s", quote(path), fault))
				continue
			}
			s.read[c.path] = "file " + quote(path)
			c.message.Source = &lbdv1.Content_Inline{Inline: string(text)}
		case *lbdv1.Content_Env:
			text, ok := getenv(from.Env)
			if from.Env == "" {
				continue
			}
			if !ok || text == "" {
				s.failed(c.at, c.path, fmt.Sprintf("environment variable %s is not set", quoteName(from.Env, from.Env)))
				continue
			}
			s.read[c.path] = "environment variable " + quote(from.Env)
			c.message.Source = &lbdv1.Content_Inline{Inline: text}
		}
	}
}

// quoteName shows a name as it was looked for, unless what the document has there looks like a content: that may be a key.
func quoteName(said, name string) string {
	if len(said) > nameShownBytesMax || strings.ContainsAny(said, "\r\n") || strings.Contains(said, "-----BEGIN") {
		return fmt.Sprintf("of a name with %d characters (not shown; a content goes under `inline`)", len(said))
	}
	return quote(name)
}

// PEMFault says why a file cannot be a chain, key or bundle at all; empty: it may be one. What is no text could not even be
// sent.
func PEMFault(text []byte, path string, key bool) string {
	command := "x509"
	if key {
		command = "pkey"
	}
	switch binary := !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0; {
	case len(bytes.TrimSpace(bytes.TrimPrefix(text, []byte("\ufeff")))) == 0:
		return "is empty"
	case binary && text[0] == derSequence:
		return fmt.Sprintf("is not PEM: `openssl %s -inform DER -in %s -out F.pem` makes PEM of DER", command, path)
	case binary:
		return "is not PEM, which is text and begins with -----BEGIN"
	}
	return ""
}

// derSequence is the first byte of every certificate and key in DER (X.690, section 8.9).
const derSequence = 0x30

// cause is an error without the path that the message names already.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
