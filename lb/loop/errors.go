package loop

import (
	"errors"
	"fmt"
	"net"
	"os"
)

var (
	// ErrClosed is returned by every call that waits, and by every later one,
	// once Engine.Close has begun. It is a net.ErrClosed.
	ErrClosed = fmt.Errorf("engine closed: %w", net.ErrClosed)

	// ErrNotOwner is returned by calls on a connection that is not the calling
	// task's: its task has ended, or it is parked. It is a net.ErrClosed.
	ErrNotOwner = fmt.Errorf("connection is not owned by this task: %w", net.ErrClosed)

	// ErrOverloaded ends a heavy step that was dropped because more of them
	// came than the loop could serve. The connection should be closed.
	ErrOverloaded = errors.New("loop overloaded, heavy step dropped")

	// ErrQueueFull is what a queued Write answers on a connection set to
	// nonblocking that has its limit pending.
	ErrQueueFull = errors.New("write queue full")

	// ErrNoDefer is what SetDeferAccept answers where nothing can be deferred.
	ErrNoDefer = errors.New("this engine cannot leave connections that say nothing to the kernel")

	// ErrWouldBlock is what Read answers on a connection set to nonblocking
	// when nothing has arrived. It is a temporary net.Error, after which
	// tls.Conn.Read can be called again.
	ErrWouldBlock net.Error = wouldBlock{}
)

type wouldBlock struct{}

func (wouldBlock) Error() string   { return "read would block" }
func (wouldBlock) Timeout() bool   { return false }
func (wouldBlock) Temporary() bool { return true }

var errDeadline = os.ErrDeadlineExceeded
