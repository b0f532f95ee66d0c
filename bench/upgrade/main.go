// Command upgrade puts one lbd in another's place again and again while clients are at it, and counts at the clients what got lost: new TLS connections,
// requests on kept ones, WebSockets and slow uploads. What is cut at the old process's deadline is not lost; anything earlier is, and the
// program ends with 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"lbd/bench/node"
)

const document = `
api_version: lbd/v1
owner: dev
pools: [{ name: default, backends: [{ address: "HERE" }] }]
routes: [{ name: default, listeners: [http, https], forward: { pools: [{ pool: default }], timeouts: { first_byte: 60s, body_idle: 30s } } }]
cluster_settings: { allow_loopback_backends: true, drain: { deadline: DEADLINE } }
`

// options are what is asked for.
type options struct {
	bin      string
	lasts    time.Duration
	every    time.Duration // between two upgrades
	deadline time.Duration // of the process that is upgraded
	rate     int           // new connections a second
	plain    int           // the same without TLS: as many accepts for less work of the clients
	kept     int           // connections with ten requests a second each
	tunnels  int
	uploads  int
	upload   time.Duration // how long one takes
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "", "folder with lbd and lbctl; by default they are built")
	flag.DurationVar(&o.lasts, "for", 10*time.Minute, "how long the clients are at it")
	flag.DurationVar(&o.every, "every", 30*time.Second, "between two upgrades")
	flag.DurationVar(&o.deadline, "deadline", 25*time.Second, "how long an old process may take to end what is under way")
	flag.IntVar(&o.rate, "rate", 2000, "new TLS connections a second, one request each")
	flag.IntVar(&o.plain, "plain", 0, "new plain connections a second, beside those of TLS, whose handshakes are most of the clients' work")
	flag.IntVar(&o.kept, "kept", 50, "connections with ten requests a second each")
	flag.IntVar(&o.tunnels, "tunnels", 200, "WebSockets")
	flag.IntVar(&o.uploads, "uploads", 2, "uploads at a time")
	flag.DurationVar(&o.upload, "upload", 20*time.Second, "how long an upload takes; less than the deadline")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r, err := measure(ctx, o)
	if err == nil {
		fmt.Print(r)
		err = r.verdict()
	}
	if err != nil && r != nil {
		fmt.Fprintln(os.Stderr, "what lbd has said at last:\n"+r.said)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "upgrade:", err)
		os.Exit(1)
	}
}

// result is what the clients have counted.
type result struct {
	upgrades  int
	slowest   time.Duration // from the start of the second process until it serves
	processes []error       // how the old ones ended
	counts    []*count
	said      string // the end of what all of them have said
}

func (r *result) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d upgrades, the slowest took %v\n", r.upgrades, r.slowest.Round(time.Millisecond))
	for _, c := range r.counts {
		fmt.Fprintln(&b, c)
	}
	return b.String()
}

// verdict is an error if anything got lost.
func (r *result) verdict() error {
	err := errors.Join(r.processes...)
	for _, c := range r.counts {
		if lost := c.lost(); lost > 0 {
			err = errors.Join(err, fmt.Errorf("%s: %d lost, the first: %s", c.what, lost, c.first))
		}
		if c.done.Load() == 0 {
			err = errors.Join(err, fmt.Errorf("%s: none was made", c.what))
		}
	}
	return err
}

// measure starts a node and its clients, and upgrades it until the time is over.
func measure(ctx context.Context, o options) (*result, error) {
	if o.bin == "" {
		dir, err := os.MkdirTemp("", "lbd-bin-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		if err := node.Build(ctx, dir); err != nil {
			return nil, err
		}
		o.bin = dir
	}
	behind, err := startBackend()
	if err != nil {
		return nil, err
	}
	defer behind.close()
	n, err := node.Start(ctx, o.bin, strings.NewReplacer("HERE", behind.address, "DEADLINE", o.deadline.String()).Replace(document))
	if err != nil {
		return nil, err
	}
	defer n.Close()
	past := &upgrades{deadline: o.deadline}
	r := &result{}
	clients, stop := context.WithTimeout(ctx, o.lasts)
	defer stop()
	var all sync.WaitGroup
	crowd := []client{
		&newcomers{address: n.HTTPS, rate: o.rate}, &regulars{address: n.HTTPS, number: o.kept},
		&tunnels{address: n.HTTPS, number: o.tunnels, past: past}, &uploads{address: n.HTTPS, number: o.uploads, lasts: o.upload},
	}
	if o.plain > 0 {
		crowd = append(crowd, &newcomers{address: n.HTTP, plain: true, rate: o.plain})
	}
	for _, c := range crowd {
		tally := &count{what: c.what()}
		r.counts = append(r.counts, tally)
		all.Go(func() { c.run(clients, tally) })
	}
	err = r.upgrade(clients, n, o, past)
	all.Wait()
	r.said = n.Said()
	return r, err
}

// upgrade puts one process after the other in the place of the one before, until ctx ends, and waits for the end of the old ones.
func (r *result) upgrade(ctx context.Context, n *node.Node, o options, past *upgrades) error {
	var old []<-chan error
	defer func() {
		for _, ended := range old {
			r.processes = append(r.processes, <-ended)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(o.every):
		}
		begun := time.Now()
		ended, err := n.Upgrade(context.WithoutCancel(ctx), o.bin)
		if err != nil {
			return fmt.Errorf("upgrade %d: %w", r.upgrades+1, err)
		}
		past.note(time.Now())
		old = append(old, ended)
		r.upgrades++
		r.slowest = max(r.slowest, time.Since(begun))
	}
}

// upgrades are when another process began to serve.
type upgrades struct {
	deadline time.Duration

	mu sync.Mutex
	at []time.Time
}

func (u *upgrades) note(at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.at = append(u.at, at)
}

// slack is how early the clients' clock may be.
const slack = 500 * time.Millisecond

// due tells whether a connection of that age has met its process's deadline by now.
func (u *upgrades) due(opened time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, at := range u.at {
		if at.After(opened) {
			return time.Since(at) >= u.deadline-slack
		}
	}
	return false
}
