package seal

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestLoadOrCreate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seal.key")
	if _, err := Load(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Load of nothing: %v", err)
	}
	made, err := LoadOrCreate(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	blob := made.Seal(binding, secret)
	for _, load := range []func(string) (*Sealer, error){Load, LoadOrCreate} {
		again, err := load(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := again.Open(binding, blob); err != nil || string(got) != string(secret) {
			t.Errorf("%q, %v", got, err)
		}
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("files left behind: %v", left)
	}
	another, err := LoadOrCreate(filepath.Join(t.TempDir(), "seal.key"))
	if err != nil || another.KeyID() == made.KeyID() {
		t.Errorf("two clusters, one key: %v", err)
	}
}

// TestCreateRace: processes that start at once end up with one key.
func TestCreateRace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seal.key")
	var (
		group sync.WaitGroup
		ids   [8]string
	)
	for i := range ids {
		group.Go(func() {
			if s, err := LoadOrCreate(path); err == nil {
				ids[i] = s.KeyID()
			}
		})
	}
	group.Wait()
	for _, id := range ids {
		if id == "" || id != ids[0] {
			t.Errorf("ids %v", ids)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	good := filepath.Join(t.TempDir(), "good")
	if _, err := LoadOrCreate(good); err != nil {
		t.Fatal(err)
	}
	line, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(line))
	changed := "A" + fields[2][1:]
	if changed == fields[2] {
		changed = "B" + fields[2][1:]
	}
	for _, test := range []struct {
		name, content string
		mode          os.FileMode
		want          string
	}{
		{"readable by others", string(line), 0o644, "mode 0644 lets others use it: chmod 600 "},
		{"readable by the group", string(line), 0o640, "mode 0640 lets others use it: chmod 600 "},
		{"empty", "", 0o600, "not a sealing key"},
		{"something else", "hello world again\n", 0o600, "not a sealing key"},
		{"a later form", strings.Replace(string(line), "key-1", "key-2", 1), 0o600, "not a sealing key"},
		{"no base64", fields[0] + " " + fields[1] + " ???", 0o600, "the key is damaged"},
		{"too short a key", fields[0] + " " + fields[1] + " QUJD", 0o600, "the key is damaged"},
		{"one character changed", fields[0] + " " + fields[1] + " " + changed, 0o600, "the key is not the one named " + fields[1]},
		{"far too long", strings.Repeat("x", 5000), 0o600, "5000 bytes are no sealing key"},
	} {
		path := filepath.Join(t.TempDir(), "seal.key")
		if err := os.WriteFile(path, []byte(test.content), test.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, test.mode); err != nil {
			t.Fatal(err)
		}
		for _, load := range []func(string) (*Sealer, error){Load, LoadOrCreate} {
			_, err := load(path)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: got %v, want %q", test.name, err, test.want)
			}
			if err != nil && len(fields[2]) > 8 && strings.Contains(err.Error(), fields[2][8:]) {
				t.Errorf("%s: the error shows the key", test.name)
			}
		}
		if after, _ := os.ReadFile(path); string(after) != test.content {
			t.Errorf("%s: the file was written to", test.name)
		}
	}
	if _, err := Load(t.TempDir()); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
		t.Errorf("a directory: %v", err)
	}
	if _, err := LoadOrCreate(filepath.Join(t.TempDir(), "no", "such", "folder", "seal.key")); err == nil || !strings.HasPrefix(err.Error(), "create sealing key: ") {
		t.Errorf("no folder: %v", err)
	}
}
