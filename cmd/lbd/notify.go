package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"lbd/cluster/rpc"
)

const (
	// notifyTimeout bounds a message to the service manager: one that does not read holds nothing up.
	notifyTimeout = time.Second
	// stopMargin is what the end takes beside the requests: the files, the control plane's own calls.
	stopMargin = 15 * time.Second
	// pulses in a watchdog's time: one that comes late, as on a machine that is short of CPU, is not the end.
	pulses = 4
	// refusalPatience is how long something may be refused before the service manager is told: a certificate that waits for its sealing key, or a port
	// that another process is about to leave, is no trouble that a person should look at.
	refusalPatience = 10 * time.Second
)

// notifier tells the service manager how the node is: sd_notify(3). A nil one tells nobody.
type notifier struct {
	conn net.Conn
	log  *slog.Logger
	// every is how often the watchdog is to hear that the node is alive; 0: there is none.
	every time.Duration
	// patience is refusalPatience.
	patience time.Duration

	mu   sync.Mutex // a node that takes its place back is ready again while run goes on
	said string     // the last status
}

// openNotifier finds out from the environment who wants to hear of this process. What is said there is not for its children: it is
// taken out. A service manager that cannot be reached is told of in the log, and is no reason not to serve.
func openNotifier(log *slog.Logger) *notifier {
	socket, wanted := os.LookupEnv("NOTIFY_SOCKET")
	every, err := watchdogInterval(os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID"))
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		_ = os.Unsetenv(name) // fails for no name like these
	}
	if !wanted || socket == "" {
		return nil
	}
	if err != nil {
		log.Warn("no watchdog is told that this node is alive", "err", err)
	}
	return dialNotifier(socket, every, log)
}

func dialNotifier(socket string, every time.Duration, log *slog.Logger) *notifier {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		log.Warn("the service manager cannot be told how this node is", "err", err)
		return nil
	}
	return &notifier{conn: conn, log: log, every: every, patience: refusalPatience}
}

// address is where the service manager hears, and how often it wants to, for a process that takes this one's place.
func (n *notifier) address() (socket string, every time.Duration) {
	if n == nil {
		return "", 0
	}
	return n.conn.RemoteAddr().String(), n.every
}

// passOn says that another process is the service's main one now.
func (n *notifier) passOn(pid int) {
	if pid > 0 {
		n.tell(fmt.Sprintf("MAINPID=%d", pid))
	}
}

// watchdogInterval is how often a watchdog wants to hear of this process; 0: it does not.
func watchdogInterval(usec, pid string) (time.Duration, error) {
	if usec == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0, nil
	}
	n, err := strconv.ParseInt(usec, 10, 64)
	if err != nil || n < pulses {
		return 0, fmt.Errorf("WATCHDOG_USEC=%q: want microseconds", usec)
	}
	return time.Duration(n) * time.Microsecond / pulses, nil
}

// tell sends lines of the form NAME=value.
func (n *notifier) tell(state string) {
	if n == nil {
		return
	}
	_ = n.conn.SetWriteDeadline(time.Now().Add(notifyTimeout))
	if _, err := n.conn.Write([]byte(state)); err != nil {
		n.log.Warn("the service manager does not hear", "message", state, "err", err)
	}
}

// ready says that the node serves. What it refuses is told by run, if it lasts.
func (n *notifier) ready(p rpc.Progress) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.said = statusLine(p.Revision, 0)
	n.tell("READY=1\n" + n.said)
}

// stopping asks for so much time: the service manager's own patience may be shorter than what the cluster's settings grant.
func (n *notifier) stopping(within time.Duration) {
	n.tell(fmt.Sprintf("STOPPING=1\nSTATUS=ends the requests under way\nEXTEND_TIMEOUT_USEC=%d", (within + stopMargin).Microseconds()))
}

func (n *notifier) close() {
	if n != nil {
		_ = n.conn.Close()
	}
}

// statusLine is what `systemctl status` shows.
func statusLine(revision int64, refused int) string {
	line := fmt.Sprintf("STATUS=serves revision %d", revision)
	if refused > 0 {
		line += fmt.Sprintf(", %d refused: see `lbctl status`", refused)
	}
	return line
}

// run tells of each revision that is served, and of refusals that last, and pulses while the node is alive, until ctx ends.
func (n *notifier) run(ctx context.Context, progress func() rpc.Progress, alive func(time.Duration) bool) {
	if n == nil {
		return
	}
	var pulse <-chan time.Time
	if n.every > 0 {
		ticker := time.NewTicker(n.every)
		defer ticker.Stop()
		pulse = ticker.C
	}
	var since time.Time // something is refused; zero: nothing is
	for {
		now := progress()
		if len(now.Refused) == 0 {
			since = time.Time{}
		} else if since.IsZero() {
			since = time.Now()
		}
		n.status(now, since)
		select {
		case <-ctx.Done():
			return
		case <-now.Changed:
		case <-n.lasts(since):
		case <-pulse:
			if alive(n.every) {
				n.tell("WATCHDOG=1")
			}
		}
	}
}

// status tells what is new. Of refusals it tells those that last.
func (n *notifier) status(now rpc.Progress, since time.Time) {
	refused := len(now.Refused)
	if time.Since(since) < n.patience {
		refused = 0
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if line := statusLine(now.Revision, refused); line != n.said && now.Serving {
		n.tell(line)
		n.said = line
	}
}

// lasts comes when what is refused since a time is to be told; nil: nothing is, or it is told.
func (n *notifier) lasts(since time.Time) <-chan time.Time {
	left := time.Until(since.Add(n.patience))
	if since.IsZero() || left <= 0 {
		return nil
	}
	return time.After(left)
}

// alive tells whether the node does its work: no loop is stalled, and the goroutine that publishes revisions answers within a time.
// Once that one has been told to end, the loops alone count.
func (a *appliance) alive(stopping <-chan struct{}, within time.Duration) bool {
	if a.engine.Stats().Stalled() {
		return false
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case a.pulse <- struct{}{}:
		return true
	case <-stopping:
		return true
	case <-timer.C:
		return false
	}
}

// pulseFor keeps the service manager informed until the function that it returns is called, which the drain comes before: a node that
// ends its requests is alive.
func (a *appliance) pulseFor(n *notifier, stopping <-chan struct{}) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		n.run(ctx, a.Progress, func(within time.Duration) bool { return a.alive(stopping, within) })
	})
	return func() {
		cancel()
		done.Wait()
	}
}
