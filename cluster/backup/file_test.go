package backup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/iotest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

var info = &lbdv1.BackupInfo{
	ClusterId: "c-1", Revision: 7, CreateTime: timestamppb.New(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)),
	SealKeyIds: []string{"0011223344556677"}, SealingKeys: "none", Counts: map[string]int64{"pools": 3}, Version: "1.2.3",
}

func records(n int) []*raftv1.SnapshotRecord {
	var all []*raftv1.SnapshotRecord
	for i := range n {
		pool := &lbdv1.Pool{Name: fmt.Sprintf("pool-%d", i), Backends: []*lbdv1.Backend{{Address: "10.0.0.1:80"}}}
		all = append(all, &raftv1.SnapshotRecord{Record: &raftv1.SnapshotRecord_Resource{Resource: &raftv1.StoredResource{
			Resource: &lbdv1.Resource{Owner: "web", Spec: &lbdv1.Resource_Pool{Pool: pool}},
		}}})
	}
	return all
}

func file(t testing.TB, n int, keys string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, info, []byte(keys), slices.Values(records(n))); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestWriteRead(t *testing.T) {
	for _, n := range []int{0, 1, 3, 20_000} {
		written := file(t, n, "sealed keys")
		for name, r := range map[string]io.Reader{
			"whole": bytes.NewReader(written), "by halves": iotest.HalfReader(bytes.NewReader(written)), "end with data": iotest.DataErrReader(bytes.NewReader(written)),
		} {
			var got []*raftv1.SnapshotRecord
			read, keys, err := Read(r, func(record *raftv1.SnapshotRecord) error {
				got = append(got, record)
				return nil
			})
			if err != nil {
				t.Fatalf("%d records, %s: %v", n, name, err)
			}
			want := proto.CloneOf(info)
			want.Format, want.Bytes = 1, int64(len(written))
			if !proto.Equal(read, want) || string(keys) != "sealed keys" {
				t.Errorf("%d records, %s: got %v and %q", n, name, read, keys)
			}
			if !slices.EqualFunc(got, records(n), func(a, b *raftv1.SnapshotRecord) bool { return proto.Equal(a, b) }) {
				t.Errorf("%d records, %s: the records differ", n, name)
			}
		}
	}
}

// TestDamageIsFound: a flipped bit anywhere, any other length, and what is no backup.
func TestDamageIsFound(t *testing.T) {
	good := file(t, 3, "sealed keys")
	for i := range good {
		for _, bit := range []byte{1, 0x80} {
			bad := bytes.Clone(good)
			bad[i] ^= bit
			if _, _, err := Read(bytes.NewReader(bad), nil); !isRefusal(err) {
				t.Errorf("byte %d ^ %x: %v", i, bit, err)
			}
		}
		if _, _, err := Read(bytes.NewReader(good[:i]), nil); !isRefusal(err) {
			t.Errorf("the first %d bytes: %v", i, err)
		}
	}
	for name, test := range map[string]struct {
		content []byte
		want    error
	}{
		"more":         {append(bytes.Clone(good), 0), ErrDamaged},
		"twice":        {append(bytes.Clone(good), good...), ErrDamaged},
		"empty":        {nil, ErrNotBackup},
		"text":         {[]byte("api_version: lbd/v1\nowner: web\n"), ErrNotBackup},
		"half a magic": {[]byte(magic[:5]), ErrNotBackup},
		"a later form": {append([]byte(magic+"\x02"), good[len(magic)+1:]...), ErrFormat},
	} {
		if _, _, err := Read(bytes.NewReader(test.content), nil); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

func isRefusal(err error) bool {
	return errors.Is(err, ErrDamaged) || errors.Is(err, ErrNotBackup) || errors.Is(err, ErrFormat)
}

// TestReadersErrorsAreTold: why the source failed, and what the visitor says.
func TestReadersErrorsAreTold(t *testing.T) {
	good := file(t, 3, "")
	broken := errors.New("the line is down")
	for n := range len(good) {
		r := io.MultiReader(bytes.NewReader(good[:n]), iotest.ErrReader(broken))
		if _, _, err := Read(r, nil); !errors.Is(err, broken) {
			t.Fatalf("after %d bytes: %v", n, err)
		}
	}
	refused := errors.New("too much")
	if _, _, err := Read(bytes.NewReader(good), func(*raftv1.SnapshotRecord) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
}

// TestHeadIsStable: the first bytes tell a later build what it reads.
func TestHeadIsStable(t *testing.T) {
	good := file(t, 0, "k")
	if !bytes.HasPrefix(good, []byte("lbd backup\n\x01")) {
		t.Errorf("it begins with %q", good[:12])
	}
}

func TestFileNames(t *testing.T) {
	name := FileName(info)
	if name != "lbd-c-1-20261130T120000Z.backup" {
		t.Errorf("name %s", name)
	}
	if at, ok := TimeOf(name, "c-1"); !ok || !at.Equal(info.GetCreateTime().AsTime()) {
		t.Errorf("time %v, %t", at, ok)
	}
	for _, other := range []string{"", "lbd-c-1.backup", "lbd-c-2-20261130T120000Z.backup", name + ".old", "x" + name, "lbd-c-1-20261130T120000Z-copy.backup"} {
		if _, ok := TimeOf(other, "c-1"); ok {
			t.Errorf("%q counts as ours", other)
		}
	}
}

// FuzzRead: no bytes make it panic or hand out more than they hold.
func FuzzRead(f *testing.F) {
	f.Add(file(f, 3, "sealed keys"))
	f.Add(file(f, 0, ""))
	f.Add([]byte(magic + "\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, content []byte) {
		if _, _, err := Read(bytes.NewReader(content), nil); err != nil && !isRefusal(err) {
			t.Errorf("not a refusal: %v", err)
		}
	})
}
