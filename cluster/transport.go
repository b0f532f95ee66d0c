package cluster

import (
	"sync"

	"github.com/hashicorp/raft"
)

// carrier is a transport of raft's that can be closed and knows the question before a vote.
type carrier interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

// transport lays a channel of its own behind a carrier's, so that a node without competitors can call itself to an election.
type transport struct {
	carrier
	requests chan raft.RPC
	done     chan struct{}
	once     sync.Once
	moving   sync.WaitGroup
}

func newTransport(c carrier) *transport {
	t := &transport{carrier: c, requests: make(chan raft.RPC), done: make(chan struct{})}
	t.moving.Go(t.move)
	return t
}

func (t *transport) move() {
	for {
		select {
		case rpc := <-t.carrier.Consumer():
			select {
			case t.requests <- rpc:
			case <-t.done:
				return
			}
		case <-t.done:
			return
		}
	}
}

// Consumer are the requests of others, and our own.
func (t *transport) Consumer() <-chan raft.RPC { return t.requests }

// stand makes raft stand for election at once, as a leader that hands over asks it to. With other voters it would disturb them.
func (t *transport) stand() {
	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}
	select {
	case t.requests <- raft.RPC{Command: &raft.TimeoutNowRequest{RPCHeader: header}, RespChan: make(chan raft.RPCResponse, 1)}:
	case <-t.done:
	}
}

// Close ends what is under way. raft does it too, once its goroutines have ended, some of which wait for an answer until this was called.
func (t *transport) Close() error {
	var err error
	t.once.Do(func() {
		close(t.done)
		err = t.carrier.Close()
		t.moving.Wait()
	})
	return err
}

// lone is the carrier of a node without a network.
func lone(id string) carrier {
	_, inmem := raft.NewInmemTransport(raft.ServerAddress(id))
	return inmem
}
