package lb

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// errorPage is a compiled ErrorPage. Its body is pieces of text, with the name of what is filled in behind each but the last.
type errorPage struct {
	statuses []int
	classes  [6]bool
	kind     string
	pieces   []pagePiece
}

type pagePiece struct {
	text string
	fill string // "", or "{request_id}", "{status}"
}

func newErrorPages(cfgs []ErrorPage) ([]errorPage, error) {
	var pages []errorPage
	for i := range cfgs {
		cfg := &cfgs[i]
		p := *newErrorPage(cfg.ContentType, cfg.Body)
		for _, text := range cfg.Status {
			if class, ok := strings.CutSuffix(strings.ToLower(text), "xx"); ok && (class == "4" || class == "5") {
				p.classes[class[0]-'0'] = true
				continue
			}
			status, err := strconv.Atoi(text)
			if err != nil {
				return nil, fmt.Errorf("error page %d: %q is no status", i+1, text)
			}
			p.statuses = append(p.statuses, status)
		}
		pages = append(pages, p)
	}
	return pages, nil
}

func newErrorPage(kind, body string) *errorPage {
	return &errorPage{kind: cmp.Or(kind, "text/html; charset=utf-8"), pieces: pagePieces(body)}
}

func pagePieces(body string) []pagePiece {
	var pieces []pagePiece
	for {
		at, fill := len(body), ""
		for _, name := range [...]string{"{request_id}", "{status}"} {
			if i := strings.Index(body, name); i >= 0 && i < at {
				at, fill = i, name
			}
		}
		pieces = append(pieces, pagePiece{body[:at], fill})
		if fill == "" {
			return pieces
		}
		body = body[at+len(fill):]
	}
}

// errorPage returns the first page for a status of ours; nil: the usual.
func (p *plan) errorPage(status int) *errorPage {
	for i := range p.errorPages {
		page := &p.errorPages[i]
		if page.classes[status/100] || slices.Contains(page.statuses, status) {
			return page
		}
	}
	return nil
}

// body fills the page in. Neither a status nor a request's id has an octet that means something in HTML or JSON.
func (p *errorPage) body(status int, id []byte) []byte {
	var body []byte
	for _, piece := range p.pieces {
		body = append(body, piece.text...)
		switch piece.fill {
		case "{request_id}":
			body = append(body, id...)
		case "{status}":
			body = strconv.AppendInt(body, int64(status), 10)
		}
	}
	return body
}
