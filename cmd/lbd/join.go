package main

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"lbd/cluster"
	"lbd/cluster/rpc"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
	"lbd/tls/seal"
)

const (
	// joinPatience is how long a node tries to reach one of those that it shall join.
	joinPatience = 15 * time.Second
	// joinDialTimeout bounds one attempt, its handshake included, and joinCallTimeout the answer.
	joinDialTimeout = 3 * time.Second
	joinCallTimeout = 15 * time.Second
	// joinPause is between two attempts, and joinApprovalPause between two looks whether the node is approved.
	joinPause         = 500 * time.Millisecond
	joinApprovalPause = time.Second
	// joinCatchUp is what a node that has just joined waits for the cluster's state before it says that it is ready.
	joinCatchUp = 30 * time.Second
	// joinTokenBytesMax bounds a file with a token.
	joinTokenBytesMax = 4 << 10
)

// joining is what `lbd join` was told: where, and with what.
type joining struct {
	addresses []string
	// token is "<id>_<secret>", and pin the "sha256:…" of the authority that the token vouches for.
	token, pin string
}

func joinCommand() *cobra.Command {
	var f flags
	var token, file string
	c := &cobra.Command{
		Use:   "join ADDR[,ADDR…] --token TOKEN",
		Short: "join a cluster, and serve until SIGTERM",
		Long: `Join the cluster that answers at ADDR (the control port of any of its nodes), then serve like "lbd run". The token is made on a
node of the cluster, "lbctl cluster join-token create". It pins the cluster's certificate authority: its secret goes to no one else.

Called again after it was cut off, it goes on where it was. On the directory of a node that has joined it just runs. Afterwards
"lbd run" restarts the node; --advertise and --node may be others then.`,
		Example: "  lbd join 10.0.0.1:7443 --token lbj_… --control 10.0.0.2:7443\n  lbd join 10.0.0.1:7443,10.0.0.2:7443 --token-file /run/secrets/join --control 10.0.0.3:7443",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{c.CommandPath(), errors.New("say where a node of the cluster answers: ADDR[,ADDR…], each HOST:PORT")}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			err := f.fromEnvironment(c, os.LookupEnv)
			cfg, cerr := f.config()
			join, jerr := parseJoin(args[0], fromEnvironment(token, "LBD_TOKEN"), fromEnvironment(file, "LBD_TOKEN_FILE"))
			if cfg.control == "off" {
				jerr = errors.Join(jerr, errors.New("--control off: a node of a cluster has a control port, by which the others reach it"))
			}
			if err := errors.Join(err, cerr, jerr); err != nil {
				return usageError{c.CommandPath(), err}
			}
			cfg.join = join
			return serve(c.Context(), cfg)
		},
	}
	f.register(c)
	c.Flags().StringVar(&token, "token", "", "the join token, lbj_…; others on this machine may see it on the command line")
	c.Flags().StringVar(&file, "token-file", "", "a file with the join token alone")
	return c
}

// fromEnvironment is a flag's value, or the variable's where the flag says nothing.
func fromEnvironment(value, variable string) string {
	if value != "" {
		return value
	}
	return os.Getenv(variable)
}

// parseJoin checks where to join, and takes the token apart: "lbj_<id>_<secret>_<sha256 of the authority>". No error shows it.
func parseJoin(where, token, file string) (*joining, error) {
	j := &joining{}
	var errs []error
	for _, address := range strings.Split(where, ",") {
		address = strings.TrimSpace(address)
		host, port, _ := net.SplitHostPort(address)
		if err := checkAddress(address); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", address, err))
		} else if wildcard(host) || port == "0" {
			errs = append(errs, fmt.Errorf("%s: that is no address at which a node could be reached", address))
		}
		j.addresses = append(j.addresses, address)
	}
	switch {
	case token != "" && file != "":
		errs = append(errs, errors.New("--token and --token-file exclude each other"))
	case token == "" && file == "":
		errs = append(errs, errors.New("--token or --token-file is missing: `lbctl cluster join-token create` on a node of the cluster makes one"))
	case file != "":
		text, err := readSmall(file, joinTokenBytesMax)
		if err != nil {
			errs = append(errs, fmt.Errorf("--token-file: %w", err))
		}
		token = text
	}
	if token == "" {
		return j, errors.Join(errs...)
	}
	parts := strings.Split(strings.TrimSpace(token), "_")
	if len(parts) != 4 || parts[0] != "lbj" || parts[1] == "" || parts[2] == "" || len(parts[3]) != 64 || strings.Trim(parts[3], "0123456789abcdef") != "" {
		errs = append(errs, errors.New("the join token is none: want lbj_… as `lbctl cluster join-token create` printed it"))
		return j, errors.Join(errs...)
	}
	j.token, j.pin = parts[1]+"_"+parts[2], "sha256:"+parts[3]
	return j, errors.Join(errs...)
}

func readSmall(path string, most int64) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if info.Size() > most {
		return "", fmt.Errorf("%s: %d bytes are no token", path, info.Size())
	}
	text, err := os.ReadFile(path)
	return string(text), err
}

// enter finds out which cluster the data directory belongs to, and joins one if that was asked for. It returns what the node was told when it
// was let in; nil: it has never joined one.
func (c *config) enter(ctx context.Context, log *slog.Logger) (*raftv1.JoinResponse, error) {
	if err := c.checkStart(); err != nil {
		return nil, err
	}
	id, err := cluster.NodeID(c.dataDir)
	if err != nil {
		return nil, err
	}
	seed, err := rpc.ReadSeed(c.dataDir)
	if err != nil || id != "" || seed != nil || c.join == nil {
		return seed, err
	}
	return c.enroll(ctx, log)
}

// checkStart refuses the data directory of a node that was removed, and of one that is to go on joining, for anything else.
func (c *config) checkStart() error {
	if err := c.checkRemoved(); err != nil {
		return err
	}
	there := func(name string) bool { return fileIsThere(filepath.Join(c.dataDir, name)) }
	if c.join == nil && there(joinIDFile) && !there(rpc.SeedFile) && !there("node-id") {
		return fmt.Errorf("%s is of a node that has begun to join a cluster: go on with `lbd join`, or start on an empty directory", c.dataDir)
	}
	return nil
}

// joinIDFile is what package cluster keeps the id in of a node that joins.
const joinIDFile = "join-id"

func fileIsThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// enroll makes this node a member:
//
//  1. its id and its key, which it makes itself
//  2. ask those that it shall join until one lets it in
//  3. keep the sealing keys, then the members: with them it has joined
//
// What was done before it was cut off is done already.
func (c *config) enroll(ctx context.Context, log *slog.Logger) (*raftv1.JoinResponse, error) {
	id, err := cluster.MakeNodeID(c.dataDir)
	if err != nil {
		return nil, err
	}
	key, err := openNodeKey(c.dataDir)
	if err != nil {
		return nil, err
	}
	source, err := seal.ParseSource(c.sealKey, filepath.Join(c.dataDir, sealKeyFile))
	if err != nil {
		return nil, err
	}
	request, err := c.joinRequest(ctx, id, key, source)
	if err != nil {
		return nil, err
	}
	shown, err := selfIssued(key, "joining", id, time.Now())
	if err != nil {
		return nil, err
	}
	j := &joiner{joining: c.join, request: request, shown: shown, log: log}
	answer, err := j.ask(ctx)
	if err != nil {
		return nil, err
	}
	defer clear(answer.GetSealKeys())
	if source.Writable() {
		if err := seal.Import(ctx, source, answer.GetSealKeys()); err != nil {
			return nil, err
		}
	}
	if err := rpc.WriteSeed(c.dataDir, answer); err != nil {
		return nil, err
	}
	log.Info("this node has joined", "cluster", answer.GetClusterId(), "node", c.node, "id", id, "members", len(answer.GetMembers()))
	return answer, nil
}

// joinRequest is what the node says of itself.
func (c *config) joinRequest(ctx context.Context, id string, key *ecdsa.PrivateKey, source seal.Source) (*raftv1.JoinRequest, error) {
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, err
	}
	self := c.self(key)
	self.Id, self.Gate = id, state.GateMax
	request := &raftv1.JoinRequest{Token: c.join.token, Node: self, PublicKey: public}
	if !source.Writable() {
		ring, err := seal.OpenRing(ctx, source, false)
		if err != nil {
			return nil, err
		}
		request.KeepsSealKeys, request.SealKeyIds = true, ring.Sealer().KeyIDs()
	}
	return request, nil
}

// self is what a node says of itself; its id and its gate are package cluster's to say.
func (c *config) self(key *ecdsa.PrivateKey) *lbdv1.Node {
	return &lbdv1.Node{
		Name: c.node, Address: c.address(), Role: lbdv1.NodeRole_NODE_ROLE_VOTER, Version: readBuild().version, Key: nodeKeyPin(key),
	}
}

// address is how others reach the control port; empty: there is none.
func (c *config) address() string {
	if c.control == "off" {
		return ""
	}
	return cmp.Or(c.advertise, c.control)
}

// joiner asks to be let in.
type joiner struct {
	*joining
	request *raftv1.JoinRequest
	shown   *tls.Certificate
	log     *slog.Logger
}

// ask asks until one of the nodes lets this one in, or refuses it. Nodes that cannot be reached are tried for a while; an approval is waited
// for as long as it takes.
func (j *joiner) ask(ctx context.Context) (*raftv1.JoinResponse, error) {
	begun, pause := time.Now(), joinPause
	for {
		answer, err := j.askAny(ctx)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err == nil && !answer.GetPending():
			return answer, nil
		case err == nil:
			if pause = joinApprovalPause; !j.request.GetWaiting() {
				j.log.Info("an admin has to approve this node", "node", j.request.GetNode().GetName(), "id", j.request.GetNode().GetId(),
					"key", j.request.GetNode().GetKey(), "how", "lbctl cluster join-token approve "+j.request.GetNode().GetName())
			}
			j.request.Waiting = true
		case !mayRetry(err) || !j.request.GetWaiting() && time.Since(begun) >= joinPatience:
			return nil, fmt.Errorf("join: %w", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// mayRetry tells whether the same question may be answered otherwise in a moment.
func mayRetry(err error) bool {
	var unreached *unreachedError
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return true
	}
	return errors.As(err, &unreached)
}

// askAny asks the first node that answers.
func (j *joiner) askAny(ctx context.Context) (*raftv1.JoinResponse, error) {
	var last error
	for _, address := range j.addresses {
		answer, err := j.askOne(ctx, address)
		if err == nil {
			return answer, nil
		}
		if s, ok := status.FromError(err); ok {
			err = &refusedError{s}
		}
		if err = fmt.Errorf("%s: %w", address, err); !mayRetry(err) {
			return nil, err
		}
		last = err
	}
	return nil, last
}

// refusedError is a node's answer, without gRPC's words around it.
type refusedError struct{ status *status.Status }

func (e *refusedError) Error() string              { return e.status.Message() }
func (e *refusedError) GRPCStatus() *status.Status { return e.status }

// unreachedError is a node with which there is no connection.
type unreachedError struct{ err error }

func (e *unreachedError) Error() string { return "no node answers: " + e.err.Error() }
func (e *unreachedError) Unwrap() error { return e.err }

func (j *joiner) askOne(ctx context.Context, address string) (*raftv1.JoinResponse, error) {
	conn, err := j.dial(ctx, address)
	if err != nil {
		return nil, err
	}
	once := make(chan net.Conn, 1)
	once <- conn
	client, err := grpc.NewClient("passthrough:///lbd", grpc.WithTransportCredentials(insecure.NewCredentials()), // dial has done what there is to do
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case conn := <-once:
				return conn, nil
			default:
				return nil, errors.New("the connection has ended")
			}
		}))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, joinCallTimeout)
	defer cancel()
	return raftv1.NewPeerServiceClient(client).Join(ctx, j.request)
}

// dial connects to a node, which has proven then that it is of the cluster that the token is for.
func (j *joiner) dial(ctx context.Context, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, joinDialTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, &unreachedError{plainly(err)}
	}
	secure := tls.Client(conn, &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{"h2"},
		Certificates:       []tls.Certificate{*j.shown},
		InsecureSkipVerify: true, // VerifyConnection is what judges
		VerifyConnection:   func(s tls.ConnectionState) error { return checkPin(s.PeerCertificates, j.pin) },
	})
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		var stranger *pinError
		if errors.As(err, &stranger) {
			return nil, stranger
		}
		return nil, &unreachedError{fmt.Errorf("the handshake failed: %w", err)}
	}
	return secure, nil
}

// pinError is a node of another cluster.
type pinError struct{ why string }

func (e *pinError) Error() string {
	return "not the cluster that the join token is for, and nothing was sent: " + e.why
}

// checkPin judges what a node shows by the certificate authority that was pinned.
func checkPin(chain []*x509.Certificate, pin string) error {
	if len(chain) == 0 {
		return &pinError{"it shows no certificate"}
	}
	options := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	pinned := false
	for _, c := range chain[1:] {
		options.Intermediates.AddCert(c)
		if rpc.PublicKeyPin(c.Raw) == pin {
			options.Roots.AddCert(c)
			pinned = true
		}
	}
	if !pinned {
		return &pinError{fmt.Sprintf("its certificate authority is %s, not %s", rpc.PublicKeyPin(chain[len(chain)-1].Raw), pin)}
	}
	if _, err := chain[0].Verify(options); err != nil {
		return &pinError{"its certificate does not hold: " + strings.TrimPrefix(err.Error(), "x509: ")}
	}
	return nil
}

// checkMember refuses to join with a directory that is of another cluster already. One that is of the token's is fine: the node is a member. And
// it refuses to run a node of a cluster where the others could not reach it.
func (c *config) checkMember(node *cluster.Node, seed *raftv1.JoinResponse, log *slog.Logger) error {
	if c.control == "off" && (seed != nil || hasOthers(node.State())) {
		return errors.New("--control off: this node is one of several, which reach it by its control port: give --control HOST:PORT")
	}
	if c.join == nil {
		return nil
	}
	current := node.State()
	authority, ok := current.Authority()
	pins := []string{rpc.PublicKeyPin(authority.GetCertificate())}
	for _, f := range authority.GetFormer() {
		pins = append(pins, rpc.PublicKeyPin(f.GetCertificate()))
	}
	if ok && !slices.Contains(pins, c.join.pin) || !ok && seed == nil {
		return fmt.Errorf("%s belongs to a node of cluster %s, which is not the one that the join token is for: `lbd run` starts it as what it is; to join another cluster give an empty --data-dir",
			c.dataDir, current.ClusterID())
	}
	if ok {
		log.Info("this node is a member already: it just runs", "cluster", current.ClusterID())
	}
	return nil
}

// awaitState waits, at the first start after a join, until this node has what the cluster had when it was let in. Where that takes too long the
// node goes on, and says what may be wrong.
func (c *config) awaitState(ctx context.Context, node *cluster.Node, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, joinCatchUp)
	defer cancel()
	for {
		next := node.Next() // before the state, so that none is missed
		if _, member := node.State().Node(node.ID()); member {
			c.forgetJoin(log)
			return
		}
		select {
		case <-next:
		case <-node.Removed():
			return
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				log.Warn("this node has joined, and has not heard from the cluster since: can the other nodes reach it at this address (--advertise)?",
					"address", c.address())
			}
			return
		}
	}
}

// forgetJoin removes what a join has left behind, once the node's own state says more. A node that lost its log and its votes must not begin
// anew under its old id: with these it could.
func (c *config) forgetJoin(log *slog.Logger) {
	for _, name := range []string{joinIDFile, rpc.SeedFile} {
		if err := os.Remove(filepath.Join(c.dataDir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			log.Warn("what the join has left behind stays", "err", err)
		}
	}
}
