package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"lbd/cluster/state"
	"lbd/lb/loop"
)

// An upgrade is a second lbd on the data directory of one that runs. It is the heir, the one that runs its predecessor; they talk over
// upgrade.sock in the data directory:
//
//	heir                                   predecessor
//	1 hello: who I am, what I can read ->
//	                                    <- 2 welcome: who I am, what is stored, where my ports are; or refused, and why
//	3 binds control and metrics ports
//	  that are others than mine; take   ->
//	                                       4 the leadership goes to another node
//	                                       5 gives its seat up: the control plane's server, raft, the data directory and its lock. The data plane
//	                                         goes on from memory
//	                                    <- 6 its listening sockets, the control socket, and its ways to those before it that still drain; yours
//	7 takes the seat, publishes on these
//	  sockets, which its loops do not
//	  serve yet, answers on the control
//	  port; ready                       ->
//	                                    <- 8 tells the service manager which process is the main one now; main
//	9 accepts, says that it is ready       9 stops accepting, drains as at its end (leave.go), and ends
//
// No socket with connections in its queue is closed: from 6 to 9 both hold them. Until 8 the heir has accepted nobody and the predecessor can go
// back: if the heir ends, says that it has failed or takes too long, it opens its seat again. Afterwards the connection stays until the predecessor has ended; that is how the heir, and the next one, know.

const (
	upgradeSocket = "upgrade.sock"
	// upgradeProtocol is counted up when old and new could not understand each other.
	upgradeProtocol = 1
	// upgradeAnswer bounds a step that takes no time: a predecessor that does not answer is stuck, and so is an heir.
	upgradeAnswer = 5 * time.Second
	// upgradeDecide is how long an heir may take between the welcome and its mind.
	upgradeDecide = 30 * time.Second
	// upgradeLetGo is how long an heir waits for the seat: calls have 5 s to end, the leadership 2 s to go, and a disk may be slow.
	upgradeLetGo = time.Minute
	// upgradeReady is how long an heir may take from there until it serves. It is what the unit file grants a start.
	upgradeReady = 5 * time.Minute
	// upgradeLeader is how long an heir waits to hear of a leader before it answers calls: they wait, too, and traffic is the predecessor's still.
	upgradeLeader = 2 * time.Second
	// generationsMax is how many processes before it an heir may find draining. Each holds a configuration, and ends at its deadline.
	generationsMax = 4

	upgradeMessageMax = 16 << 10
	upgradeFilesMax   = 4096
)

// The steps, as messages name them.
const (
	stepHello   = "hello"
	stepWelcome = "welcome"
	stepRefused = "refused"
	stepTake    = "take"
	stepSocket  = "socket"
	stepElder   = "elder"
	stepControl = "control"
	stepYours   = "yours"
	stepReady   = "ready"
	stepFailed  = "failed"
	stepMain    = "main"
)

// letter is one message.
type letter struct {
	Step string
	// Process is of hello and welcome.
	Process *processCard `json:",omitempty"`
	// Socket says what the one attached is for; Pid is the process at the other end of the one attached to elder.
	Socket *socketUse `json:",omitempty"`
	Pid    int        `json:",omitempty"`
	Reason string     `json:",omitempty"`
	Files  int        `json:",omitempty"` // attached
}

// processCard is what one process says of itself.
type processCard struct {
	Protocol int
	Pid      int
	Version  string
	Node     string
	// Gate is the newest that an heir reads; of a predecessor, what the cluster has committed. Format is that of the stored state.
	Gate, Format int32
	// Control and Metrics are where the predecessor has its ports.
	Control, Metrics string
	// Notify is where the predecessor's service manager hears, Watchdog how often it wants to, in nanoseconds.
	Notify   string        `json:",omitempty"`
	Watchdog time.Duration `json:",omitempty"`
}

// thisProcess is what there is to say of every process.
func (c *config) thisProcess() *processCard {
	return &processCard{
		Protocol: upgradeProtocol, Pid: os.Getpid(), Version: readBuild().version, Node: c.node,
		Gate: state.GateMax, Format: state.Format, Control: c.control, Metrics: c.metrics,
	}
}

func upgradePath(dataDir string) string { return filepath.Join(dataDir, upgradeSocket) }

// courier carries letters, one JSON document a line, and the files that belong to them.
type courier struct {
	conn *net.UnixConn
	read []byte // and not taken yet
	file []int  // that came, and were not taken yet
}

// send sends one letter within a time.
func (c *courier) send(l letter, within time.Duration, files ...int) error {
	l.Files = len(files)
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(within))
	var rights []byte
	if len(files) > 0 {
		rights = syscall.UnixRights(files...)
	}
	_, _, err = c.conn.WriteMsgUnix(append(text, '\n'), rights, nil)
	return plainEnd(err)
}

// receive waits for the next letter, for so long; with it come its files, which are the caller's then.
func (c *courier) receive(within time.Duration) (l letter, files []int, err error) {
	_ = c.conn.SetReadDeadline(time.Now().Add(within))
	for {
		if line, rest, ok := bytes.Cut(c.read, []byte("\n")); ok {
			c.read = rest
			if err := json.Unmarshal(line, &l); err != nil {
				return letter{}, nil, err
			}
			if l.Files < 0 || l.Files > len(c.file) {
				return letter{}, nil, fmt.Errorf("%s: %d files were announced, and %d came", l.Step, l.Files, len(c.file))
			}
			files, c.file = c.file[:l.Files:l.Files], c.file[l.Files:]
			return l, files, nil
		}
		if len(c.read) > upgradeMessageMax || len(c.file) > upgradeFilesMax {
			return letter{}, nil, errors.New("what came is no message")
		}
		if err := c.fill(); err != nil {
			return letter{}, nil, err
		}
	}
}

// fill reads what has come.
func (c *courier) fill() error {
	text, rights := make([]byte, 4<<10), make([]byte, syscall.CmsgSpace(4*32))
	n, m, _, _, err := c.conn.ReadMsgUnix(text, rights)
	if m > 0 {
		all, parseErr := syscall.ParseSocketControlMessage(rights[:m])
		if parseErr != nil {
			return parseErr
		}
		for _, message := range all {
			files, parseErr := syscall.ParseUnixRights(&message)
			if parseErr != nil {
				return parseErr
			}
			c.file = append(c.file, files...)
		}
	}
	if n > 0 {
		c.read = append(c.read, text[:n]...)
		return nil
	}
	if err == nil {
		err = io.EOF
	}
	return plainEnd(err)
}

// errEnded is that there is nobody at the other end any more.
var errEnded = errors.New("it has ended")

func plainEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return errEnded
	}
	return err
}

// close closes the connection, and files that nobody has taken.
func (c *courier) close() {
	_ = c.conn.Close()
	for _, fd := range c.file {
		_ = syscall.Close(fd)
	}
	c.file = nil
}

// expect is receive of one certain step. What the other side says instead is an error: its reason, where it gives one.
func (c *courier) expect(step string, within time.Duration) (letter, error) {
	l, files, err := c.receive(within)
	for _, fd := range files {
		_ = syscall.Close(fd)
	}
	switch {
	case err != nil:
		return letter{}, err
	case l.Step == step:
		return l, nil
	case l.Reason != "":
		return letter{}, &refusedStep{l.Reason}
	}
	return letter{}, fmt.Errorf("%s came in place of %s", l.Step, step)
}

// refusedStep is the other side's reason not to go on.
type refusedStep struct{ reason string }

func (e *refusedStep) Error() string { return e.reason }

// elder is a process before this one that still drains. Its connection ends with it.
type elder struct {
	pid  int
	conn *net.UnixConn
}

// sendOf sends what a connection or a file is.
func (c *courier) sendOf(l letter, what syscall.Conn) error {
	raw, err := what.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) { err = c.send(l, upgradeAnswer, int(fd)) })
	return errors.Join(controlErr, err)
}

// sendSockets sends listening sockets, one a letter.
func (c *courier) sendSockets(all []handedSocket) error {
	for _, s := range all {
		if err := c.send(letter{Step: stepSocket, Socket: &s.use}, upgradeAnswer, s.descriptor.FD()); err != nil {
			return err
		}
	}
	return nil
}

// takeSocket is the other end of it. A file that is no listening socket is closed.
func takeSocket(l letter, files []int) (socketUse, *loop.Descriptor, error) {
	if l.Socket == nil || len(files) != 1 {
		return socketUse{}, nil, errors.Join(errors.New("a socket was announced, and did not come"), closeAll(files))
	}
	d, err := loop.NewDescriptor(files[0])
	if err != nil {
		return socketUse{}, nil, errors.Join(err, closeAll(files))
	}
	return *l.Socket, d, nil
}

func closeAll(files []int) error {
	var errs []error
	for _, fd := range files {
		errs = append(errs, syscall.Close(fd))
	}
	return errors.Join(errs...)
}

// connOf makes a connection of a file.
func connOf(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "upgrade")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("a %T came", c), c.Close())
	}
	return u, nil
}
