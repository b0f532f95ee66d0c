package rpc

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	lbdv1 "lbd/proto/lbd/v1"
)

// DebugFile is one file of the archive that CollectDebug makes.
type DebugFile struct {
	// Name is its path in the archive: "goroutines.txt".
	Name string
	// About says in a few words what is in it.
	About string
	// Write writes the content. What it has written before an error stays; the error is noted in the archive. It may be given up
	// when its context ends, and then runs on by itself.
	Write func(ctx context.Context, w io.Writer) error
	// longer is what it may take beyond debugFileTimeoutMax.
	longer time.Duration
}

// CollectDebug streams an archive of what is needed to understand this node:
//
//  1. what the process knows of itself, the stacks first: where the rest of the node hangs, these have been sent
//  2. what the control plane knows
//  3. the profile of the CPU, if one is asked for
//  4. what could not be had (errors.txt), and the list of all (manifest.json)
//
// Each file is made by itself, within a time and a size, so that one that fails, panics or hangs costs itself alone.
func (s *systemService) CollectDebug(req *lbdv1.CollectDebugRequest, stream grpc.ServerStreamingServer[lbdv1.CollectDebugResponse]) error {
	if there, err := passed(s.fleet, lbdv1.SystemService_CollectDebug_FullMethodName, req, stream); there || err != nil {
		return err
	}
	profile, err := profileLength(req)
	if err != nil {
		return err
	}
	by, err := callerOf(stream.Context())
	if err != nil {
		return err
	}
	select {
	case s.collecting <- struct{}{}:
		defer func() { <-s.collecting }()
	default:
		return unavailable(reasonBusy, "another archive is being made: try again when it is done")
	}
	b := newBundle(s, by.Author, func(data []byte) error { return stream.Send(&lbdv1.CollectDebugResponse{Data: data}) })
	for _, f := range append(s.observer.DebugFiles(), s.debugFiles(profile)...) {
		if err := b.collect(stream.Context(), f); err != nil {
			return err
		}
	}
	return b.finish()
}

// profileLength is how long the CPU is to be profiled; 0: not at all.
func profileLength(req *lbdv1.CollectDebugRequest) (time.Duration, error) {
	if req.GetCpuProfile() == nil {
		return 0, nil
	}
	return profileRange("cpu_profile", req.GetCpuProfile().AsDuration())
}

func profileRange(field string, d time.Duration) (time.Duration, error) {
	if d < profileMin || d > profileMax {
		return 0, invalidField(field, "%s is out of range: %s to %s", d, profileMin, profileMax)
	}
	return d, nil
}

// manifest says what is in an archive.
type manifest struct {
	Node      string         `json:"node"`
	ClusterID string         `json:"cluster_id"`
	Version   string         `json:"version"`
	Commit    string         `json:"commit"`
	Time      time.Time      `json:"time"`
	Author    string         `json:"author"`
	Files     []manifestFile `json:"files"`
}

type manifestFile struct {
	Name   string `json:"name"`
	About  string `json:"about"`
	Bytes  int    `json:"bytes"`
	SHA256 string `json:"sha256"`
	// Error says why it is not whole; empty: it is.
	Error string `json:"error,omitempty"`
}

// bundle is an archive that is being made.
type bundle struct {
	out      *pieces
	gzip     *gzip.Writer
	tar      *tar.Writer
	workers  *sync.WaitGroup
	folder   string
	manifest manifest
	errors   bytes.Buffer
}

func newBundle(s *systemService, author string, send func([]byte) error) *bundle {
	now := s.now().UTC()
	b := &bundle{out: &pieces{send: send}, workers: s.workers, folder: "lbd-debug-" + fileName(s.node) + "-" + now.Format("20060102T150405Z") + "/"}
	b.manifest = manifest{
		Node: s.node, ClusterID: s.store.State().ClusterID(), Version: s.build.GetVersion(), Commit: s.build.GetCommit(), Time: now, Author: author,
	}
	b.gzip = gzip.NewWriter(b.out)
	b.tar = tar.NewWriter(b.gzip)
	return b
}

// fileName is a node's name as a part of a path.
func fileName(node string) string {
	b := []byte(node)
	for i, c := range b {
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '-' && c != '_' {
			b[i] = '-'
		}
	}
	return string(b)
}

// collect makes a file and sends it. Its own errors are those of the caller's connection.
func (b *bundle) collect(ctx context.Context, f DebugFile) error {
	within := debugFileTimeoutMax + f.longer
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	content := &bounded{max: debugFileBytesMax}
	ended := make(chan error, 1)
	out := content // content changes hands below, while the worker may run on
	b.workers.Go(func() { ended <- written(limited, f, out) })
	var err error
	select {
	case err = <-ended:
	case <-limited.Done():
		content, err = &bounded{}, fmt.Errorf("it was not there within %s", within)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil && content.cut {
		err = fmt.Errorf("cut off at %d bytes", debugFileBytesMax)
	}
	return b.add(f, content.kept.Bytes(), err)
}

// written writes a file; a panic is its error.
func written(ctx context.Context, f DebugFile, w io.Writer) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return f.Write(ctx, w)
}

// add puts a file into the archive and sends what there is.
func (b *bundle) add(f DebugFile, content []byte, failure error) error {
	sum := sha256.Sum256(content)
	entry := manifestFile{Name: f.Name, About: f.About, Bytes: len(content), SHA256: hex.EncodeToString(sum[:])}
	if failure != nil {
		entry.Error = failure.Error()
		fmt.Fprintf(&b.errors, "%s: %v\n", f.Name, failure)
	}
	b.manifest.Files = append(b.manifest.Files, entry)
	return b.store(f.Name, content)
}

func (b *bundle) store(name string, content []byte) error {
	header := &tar.Header{Name: b.folder + name, Mode: 0o600, Size: int64(len(content)), ModTime: b.manifest.Time}
	if err := b.tar.WriteHeader(header); err != nil {
		return err
	}
	if _, err := b.tar.Write(content); err != nil {
		return err
	}
	if err := b.tar.Flush(); err != nil {
		return err
	}
	if err := b.gzip.Flush(); err != nil {
		return err
	}
	return b.out.flush()
}

// finish adds the list of errors, if there are any, and the manifest.
func (b *bundle) finish() error {
	if b.errors.Len() > 0 {
		failures := DebugFile{Name: "errors.txt", About: "what could not be had"}
		if err := b.add(failures, b.errors.Bytes(), nil); err != nil {
			return err
		}
	}
	text, err := json.MarshalIndent(b.manifest, "", "  ")
	if err != nil {
		return withDetails(codes.Internal, reasonInternal, err.Error())
	}
	if err := b.store("manifest.json", append(text, '\n')); err != nil {
		return err
	}
	if err := b.tar.Close(); err != nil {
		return err
	}
	if err := b.gzip.Close(); err != nil {
		return err
	}
	return b.out.flush()
}

// bounded keeps the first max bytes of what is written to it.
type bounded struct {
	kept bytes.Buffer
	max  int
	cut  bool
}

// Write takes everything: who writes is not to fail for a reader's limit.
func (b *bounded) Write(p []byte) (int, error) {
	room := b.max - b.kept.Len()
	if len(p) > room {
		b.cut = true
	}
	b.kept.Write(p[:min(len(p), room)])
	return len(p), nil
}
