package main

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

func TestGrantedMemory(t *testing.T) {
	const none = 9223372036854771712 // what version 1 says of no limit
	for name, c := range map[string]struct {
		groups string
		files  map[string]string
		want   int64 // 0: no limit
	}{
		"version 2":              {"0::/system.slice/lbd.service\n", map[string]string{"system.slice/lbd.service/memory.max": "1000"}, 1000},
		"version 2, none":        {"0::/lbd\n", map[string]string{"lbd/memory.max": "max\n"}, 0},
		"a group above":          {"0::/a/b\n", map[string]string{"a/b/memory.max": "max", "a/memory.max": "500\n", "memory.max": "700"}, 500},
		"outside of the mount":   {"0::/../../x\n", map[string]string{"memory.max": "300"}, 300},
		"version 1":              {"5:cpu:/c\n4:memory:/m\n0::/\n", map[string]string{"memory/m/memory.limit_in_bytes": "2000", "c/memory.limit_in_bytes": "1"}, 2000},
		"version 1, none":        {"4:memory:/m\n", map[string]string{"memory/m/memory.limit_in_bytes": "9223372036854771712"}, 0},
		"version 1, in the root": {"4:memory:/elsewhere\n", map[string]string{"memory/memory.limit_in_bytes": "800"}, 800},
		"nothing":                {"", nil, 0},
		"no such file":           {"-", nil, 0},
	} {
		root := t.TempDir()
		file := filepath.Join(root, "groups")
		if c.groups != "-" {
			write(t, file, c.groups)
		}
		for path, text := range c.files {
			write(t, filepath.Join(root, path), text)
		}
		if got, ok := grantedMemory(file, root); ok != (c.want > 0) || ok && got != c.want {
			t.Errorf("%s: %d, %v, want %d", name, got, ok, c.want)
		}
	}
	if none < noMemoryLimit {
		t.Error("what version 1 says of no limit counts as one")
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestMemoryWords(t *testing.T) {
	says(t, memoryFinding(math.MaxInt64, 100<<20), levelOK, "100 MiB in use, no limit")
	says(t, memoryFinding(1<<30, 100<<20), levelOK, "100 MiB of 1024 MiB")
	says(t, memoryFinding(1<<30, 1000<<20), levelWarning, "the collector takes CPU")
	says(t, stateFinding(100<<20, 1<<30), levelOK, "100 MiB of the 1024 MiB")
	says(t, stateFinding(900<<20, 1<<30), levelWarning, "changes beyond are refused")
	if held := heldMemory(); held < 1<<20 || held > 1<<40 {
		t.Errorf("%d bytes held", held)
	}
}
