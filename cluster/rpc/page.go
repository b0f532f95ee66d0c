package rpc

import (
	"encoding/base64"
	"strings"

	"google.golang.org/protobuf/proto"

	lbdv1 "lbd/proto/lbd/v1"
)

// page collects one answer's entries: up to a number and up to a size, so that it fits in a message.
type page struct {
	left  int
	bytes int
}

// newPage refuses a size that is out of range; 0 is the default.
func newPage(size int32) (*page, error) {
	switch {
	case size == 0:
		size = pageSizeDefault
	case size < 1 || size > pageSizeMax:
		return nil, invalidField("page_size", "%d is out of range: 1 to %d", size, pageSizeMax)
	}
	return &page{left: int(size)}, nil
}

// take reports whether one more entry fits. The first always does.
func (p *page) take(entry proto.Message) bool {
	size := proto.Size(entry)
	if p.left == 0 || p.bytes > 0 && p.bytes+size > partBytesMax {
		return false
	}
	p.left--
	p.bytes += size
	return true
}

// pageToken says after which entry of which query the next page begins. Entries made or deleted between two pages
// are seen or missed; none is seen twice.
func pageToken(query ...string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strings.Join(query, "\x00")))
}

// parsePageToken reads a token of the same query; last is empty for the first page.
func parsePageToken(token string, query ...string) (last string, err error) {
	if token == "" {
		return "", nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		if rest, ok := strings.CutPrefix(string(raw), strings.Join(query, "\x00")+"\x00"); ok && rest != "" {
			return rest, nil
		}
	}
	return "", invalidField("page_token", "this is not a token of the same query: begin with the first page")
}

// parts sends resources in messages of bounded size.
type parts struct {
	send    func(*lbdv1.ExportResponse) error
	pending []*lbdv1.Resource
	bytes   int
}

func (p *parts) add(r *lbdv1.Resource) error {
	size := proto.Size(r)
	if len(p.pending) > 0 && p.bytes+size > partBytesMax {
		if err := p.flush(); err != nil {
			return err
		}
	}
	p.pending = append(p.pending, r)
	p.bytes += size
	return nil
}

func (p *parts) flush() error {
	if len(p.pending) == 0 {
		return nil
	}
	part := &lbdv1.ExportResponse{Resources: p.pending}
	p.pending, p.bytes = nil, 0
	return p.send(part)
}
