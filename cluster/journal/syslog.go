package journal

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	lbdv1 "lbd/proto/lbd/v1"
)

// authNotice is a message's priority: facility auth, severity notice (RFC 5424, section 6.2.1).
const authNotice = 4<<3 | 5

// syslog sends copies to a local syslog daemon, in the form that such sockets have always taken (RFC 3164). The standard library's
// writer may wait for a stuck daemon for ever: this one gives up and asks again next time. Only the journal's goroutine uses it.
type syslog struct {
	path string
	conn net.Conn
}

func newSyslog(path string) *syslog { return &syslog{path: path} }

// send tries once, and once more on a new connection: the daemon may have been restarted.
func (s *syslog) send(entry *lbdv1.ListAuditResponse) {
	if s.path == "" {
		return
	}
	line := fmt.Sprintf("<%d>%s lbd[%d]: refused result=%s method=%s source=%s author=%s count=%d message=%s",
		authNotice, entry.GetTime().AsTime().Local().Format(time.Stamp), os.Getpid(), entry.GetResult(), strconv.Quote(entry.GetMethod()),
		strconv.Quote(entry.GetSource()), strconv.Quote(entry.GetAuthor()), entry.GetCount(), strconv.Quote(entry.GetMessage()))
	for range 2 {
		if s.conn == nil {
			conn, err := net.DialTimeout("unixgram", s.path, syslogTimeout)
			if err != nil {
				return
			}
			s.conn = conn
		}
		_ = s.conn.SetWriteDeadline(time.Now().Add(syslogTimeout))
		if _, err := s.conn.Write([]byte(line)); err == nil {
			return
		}
		s.close()
	}
}

func (s *syslog) close() {
	if s.conn != nil {
		_ = s.conn.Close()
		s.conn = nil
	}
}
