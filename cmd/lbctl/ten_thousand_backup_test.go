package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	lbdv1 "lbd/proto/lbd/v1"
)

// carryMany takes what a node with many certificates has to a new one by a backup, and seals all of it anew: an idle machine does each in
// some seconds, and has a minute here.
func carryMany(t *testing.T, conn *grpc.ClientConn, from, name string) {
	t.Helper()
	const passphrase = "correct horse battery staple"
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	began := time.Now()
	stream, err := lbdv1.NewBackupServiceClient(conn).CreateBackup(ctx, &lbdv1.CreateBackupRequest{Passphrase: passphrase})
	if err != nil {
		t.Fatal(err)
	}
	var file []byte
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		file = append(file, piece.GetData()...)
	}
	t.Logf("backup of %d MB in %v", len(file)>>20, time.Since(began))

	began = time.Now()
	rotated, err := lbdv1.NewClusterServiceClient(conn).RotateSeal(ctx, &lbdv1.RotateSealRequest{})
	if err != nil || rotated.GetResealed() < manyCertificates || rotated.GetKeys()[1].GetSecrets() != 0 {
		t.Fatalf("rotate: %v, %v", rotated, err)
	}
	within(t, "sealing all of it anew", began)

	to, address := startMany(t)
	began = time.Now()
	restore, err := lbdv1.NewBackupServiceClient(to).RestoreBackup(ctx)
	if err != nil {
		t.Fatal(err)
	}
	head := &lbdv1.RestoreBackupHeader{Passphrase: passphrase, Replace: true}
	err = restore.Send(&lbdv1.RestoreBackupRequest{Part: &lbdv1.RestoreBackupRequest_Header{Header: head}})
	for piece := range slices.Chunk(file, partBytesMax) {
		if err == nil {
			err = restore.Send(&lbdv1.RestoreBackupRequest{Part: &lbdv1.RestoreBackupRequest_Data{Data: piece}})
		}
	}
	answer, refused := restore.CloseAndRecv()
	if refused != nil || len(answer.GetChanges()) < manyCertificates {
		t.Fatalf("restore: %d changes, %v, %v", len(answer.GetChanges()), err, refused)
	}
	within(t, "the restore", began)
	for want := servedTo(t, from, name); servedTo(t, address, name) != want; time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > 2*patience {
			t.Fatal("what was restored is not served")
		}
	}
	t.Logf("served after %v", time.Since(began))
}

func within(t *testing.T, what string, began time.Time) {
	t.Helper()
	took := time.Since(began)
	t.Logf("%s took %v", what, took)
	if took > patience {
		t.Errorf("%s took %v, want under %v", what, took, patience)
	}
}

// startMany is another node.
func startMany(t *testing.T) (*grpc.ClientConn, string) {
	t.Helper()
	dir := t.TempDir()
	address, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	n := &node{name: "other", binary: "lbd-plain", log: filepath.Join(dir, "log"), args: []string{
		"run", "--dev", "--data-dir", filepath.Join(dir, "data"), "--node", "other", "--listen", "https=" + address, "--listen", "http=127.0.0.1:0", "--metrics", "off",
	}}
	t.Cleanup(n.kill)
	if _, err := n.start(os.Environ()); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix:"+filepath.Join(dir, "data", "control.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn, address
}
