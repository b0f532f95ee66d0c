package rpc

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/backup"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// backupService answers lbd.v1.BackupService.
type backupService struct {
	lbdv1.UnimplementedBackupServiceServer
	store  Store
	keys   Keys
	writer *writer
	build  string
	// slot lets one restore at a time hold a backup in memory.
	slot chan struct{}
}

func newBackupService(cfg Config, w *writer) *backupService {
	return &backupService{store: cfg.Store, keys: cfg.Keys, writer: w, build: cfg.Build.GetVersion(), slot: make(chan struct{}, 1)}
}

// BackupPlan says how a backup is made.
type BackupPlan struct {
	// Recipients and Passphrase are for the sealing keys; neither: they are not in it.
	Recipients []string
	Passphrase string
	Time       time.Time
	// Version is the build that makes it.
	Version string
}

// describeBackup says what a backup of a state will hold.
func describeBackup(st *state.State, keys Sealing, plan BackupPlan) (*lbdv1.BackupInfo, error) {
	info := &lbdv1.BackupInfo{
		ClusterId: st.ClusterID(), CreateTime: timestamppb.New(plan.Time), Revision: st.Revision(), Version: plan.Version,
		SealingKeys: "none", Counts: map[string]int64{},
	}
	size := 0
	for record := range recordsOf(st) {
		size += record.bytes
		info.Counts[record.kind]++
		if len(record.sealed) == 0 {
			continue
		}
		id, err := keys.SealKeyOf(record.sealed)
		if err != nil {
			return nil, fmt.Errorf("back up: a certificate's key: %w", err)
		}
		if !slices.Contains(info.SealKeyIds, id) {
			info.SealKeyIds = append(info.SealKeyIds, id)
		}
	}
	if size > state.RestoreBytesMax {
		return nil, notAllowed(reasonTooLarge, "the resources take %d bytes: a restore takes at most %d", size, state.RestoreBytesMax)
	}
	return info, nil
}

// WriteBackup writes a backup of a state.
func WriteBackup(w io.Writer, st *state.State, keys Sealing, plan BackupPlan) (*lbdv1.BackupInfo, error) {
	info, err := describeBackup(st, keys, plan)
	if err != nil {
		return nil, err
	}
	block, err := encryptedKeys(keys, info, plan)
	if err != nil {
		return nil, err
	}
	return info, backup.Write(w, info, block, func(yield func(*raftv1.SnapshotRecord) bool) {
		for record := range recordsOf(st) {
			if !yield(record.SnapshotRecord) {
				return
			}
		}
	})
}

// encryptedKeys is the block of sealing keys that the backup's secrets need.
func encryptedKeys(keys Sealing, info *lbdv1.BackupInfo, plan BackupPlan) ([]byte, error) {
	field := "recipients"
	switch {
	case len(plan.Recipients) > 0:
		info.SealingKeys = "age recipients"
	case plan.Passphrase != "":
		info.SealingKeys, field = "passphrase", "passphrase"
	default:
		return nil, nil
	}
	text := keys.SealKeyText(info.GetSealKeyIds())
	defer clear(text)
	block, err := backup.EncryptKeys(text, plan.Recipients, plan.Passphrase)
	if err != nil {
		return nil, invalidField(field, "%v", err)
	}
	return block, nil
}

type backupRecord struct {
	*raftv1.SnapshotRecord
	kind   string // as it is counted
	sealed []byte
	bytes  int
}

// recordsOf is what a backup holds: resources in the order of a document, then credentials.
func recordsOf(st *state.State) iter.Seq[backupRecord] {
	return func(yield func(backupRecord) bool) {
		for _, kind := range state.Kinds() {
			for stored := range st.All(kind) {
				record := &raftv1.SnapshotRecord{Record: &raftv1.SnapshotRecord_Resource{Resource: stored}}
				if !yield(backupRecord{record, string(kind), stored.GetMaterial().GetSealedKey(), sizeOf(record)}) {
					return
				}
			}
		}
		for t := range st.Tokens() {
			record := &raftv1.SnapshotRecord{Record: &raftv1.SnapshotRecord_Token{Token: t}}
			if !yield(backupRecord{record, "tokens", nil, sizeOf(record)}) {
				return
			}
		}
	}
}

// CreateBackup streams a backup of the state at this moment. One with sealing keys is in the audit before anybody has it.
func (s *backupService) CreateBackup(req *lbdv1.CreateBackupRequest, stream grpc.ServerStreamingServer[lbdv1.CreateBackupResponse]) error {
	by, err := callerOf(stream.Context())
	if err != nil {
		return err
	}
	if err := checkRecipients("recipients", req.GetRecipients()); err != nil {
		return err
	}
	plan := BackupPlan{Recipients: req.GetRecipients(), Passphrase: req.GetPassphrase(), Time: s.writer.now(), Version: s.build}
	st := s.store.State()
	if len(req.GetRecipients()) > 0 || req.GetPassphrase() != "" {
		what, err := s.handedOut(st, plan)
		if err != nil {
			return err
		}
		if _, err := s.writer.command(&raftv1.Command{Kind: &raftv1.Command_Reseal{Reseal: &raftv1.ResealCommand{
			Author: by.Author, Time: timestamppb.New(s.writer.now()), Origin: origin(stream.Context()), Message: what,
		}}}); err != nil {
			return err
		}
	}
	out := &pieces{send: func(b []byte) error { return stream.Send(&lbdv1.CreateBackupResponse{Data: b}) }}
	if _, err := WriteBackup(out, st, s.keys, plan); err != nil {
		return err
	}
	return out.flush()
}

// handedOut says for the audit which sealing keys a backup takes along, and who can read them.
func (s *backupService) handedOut(st *state.State, plan BackupPlan) (string, error) {
	info, err := describeBackup(st, s.keys, plan)
	if err != nil {
		return "", err
	}
	how := "under a passphrase"
	if len(plan.Recipients) > 0 {
		how = "encrypted for " + strings.Join(plan.Recipients, ", ")
	}
	ids := cmp.Or(strings.Join(info.GetSealKeyIds(), ", "), "none is needed")
	return fmt.Sprintf("backup of revision %d handed out with its sealing keys (%s) %s", info.GetRevision(), ids, how), nil
}

// pieces cuts what is written into messages.
type pieces struct {
	send   func([]byte) error
	buffer []byte
}

func (p *pieces) Write(b []byte) (int, error) {
	p.buffer = append(p.buffer, b...)
	if len(p.buffer) < pieceBytes {
		return len(b), nil
	}
	return len(b), p.flush()
}

func (p *pieces) flush() error {
	for piece := range slices.Chunk(p.buffer, pieceBytes) {
		if err := p.send(piece); err != nil {
			return err
		}
	}
	p.buffer = nil // gRPC may still hold on to what was sent
	return nil
}

// received reads what came in pieces.
type received struct {
	recv func() ([]byte, error)
	rest bytes.Reader
}

func (r *received) Read(p []byte) (int, error) {
	for r.rest.Len() == 0 {
		data, err := r.recv()
		if err != nil {
			return 0, err
		}
		r.rest.Reset(data)
	}
	return r.rest.Read(p)
}

// InspectBackup says what is in a backup and whether it is whole.
func (s *backupService) InspectBackup(stream grpc.ClientStreamingServer[lbdv1.InspectBackupRequest, lbdv1.InspectBackupResponse]) error {
	info, _, err := backup.Read(&received{recv: func() ([]byte, error) {
		piece, err := stream.Recv()
		return piece.GetData(), err
	}}, nil)
	if err != nil {
		return backupError(err)
	}
	ids, _ := s.keys.SealKeys()
	info.KeysKnown = !slices.ContainsFunc(info.GetSealKeyIds(), func(id string) bool { return !slices.Contains(ids, id) })
	return stream.SendAndClose(&lbdv1.InspectBackupResponse{Backup: info})
}

// backupError makes a status of what is wrong with a file; what is wrong with its sender is one already.
func backupError(err error) error {
	if errors.Is(err, backup.ErrNotBackup) || errors.Is(err, backup.ErrFormat) || errors.Is(err, backup.ErrDamaged) {
		return invalidField("backup", "%v", err)
	}
	return err
}

// contents is a backup in memory.
type contents struct {
	info      *lbdv1.BackupInfo
	keys      []byte
	resources []*raftv1.StoredResource
	tokens    []*raftv1.StoredToken
	bytes     int
}

// readContents reads a whole backup, and nothing of it is used before its checksum was found right.
func readContents(r io.Reader) (*contents, error) {
	c := &contents{}
	var err error
	if c.info, c.keys, err = backup.Read(r, c.add); err != nil {
		return nil, backupError(err)
	}
	return c, nil
}

func (c *contents) add(record *raftv1.SnapshotRecord) error {
	if what := state.Unknown(record); what != "" {
		return fmt.Errorf("%w: it has %s, which a newer lbd wrote", backup.ErrFormat, what)
	}
	if c.bytes += sizeOf(record); c.bytes > state.RestoreBytesMax {
		return invalidField("backup", "holds more than %d bytes", state.RestoreBytesMax)
	}
	switch record := record.GetRecord().(type) {
	case *raftv1.SnapshotRecord_Resource:
		c.resources = append(c.resources, record.Resource)
	case *raftv1.SnapshotRecord_Token:
		c.tokens = append(c.tokens, record.Token)
	default:
		return fmt.Errorf("%w: it has a record that is no resource and no token", backup.ErrDamaged)
	}
	return nil
}

func (s *backupService) restoreSlot(ctx context.Context) error {
	select {
	case s.slot <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
