package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"lbd/cluster/rpc"
	"lbd/tls/seal"
)

const (
	// stacksMax goroutines are written down each by itself, with how long it has waited; of more, those at the same place are
	// counted, which stops the process for a shorter time.
	stacksMax = 10_000
	// factBytesMax bounds a file of the kernel's in a debug archive.
	factBytesMax = 64 << 10
)

// DebugFiles implements rpc.Observer. The stacks come first, as they take no lock: they tell why the rest may hang.
func (a *appliance) DebugFiles() []rpc.DebugFile {
	return []rpc.DebugFile{
		{Name: "goroutines.txt", About: "the stacks of all goroutines", Write: writeStacks},
		{Name: "log.txt", About: "the last lines of the node's own log", Write: a.writeRecent},
		{Name: "flags.json", About: "what the command line and the environment have said", Write: a.writeFlags},
		{Name: "process.txt", About: "limits, memory, control group and kernel of the process", Write: a.writeFacts},
		{Name: "files.txt", About: "what the data directory holds, and the room on its disk", Write: a.writeDataDir},
		{Name: "loops.json", About: "the event loops' counters", Write: a.writeLoops},
	}
}

func writeStacks(_ context.Context, w io.Writer) error {
	detail := 2
	if runtime.NumGoroutine() > stacksMax {
		detail = 1
	}
	return pprof.Lookup("goroutine").WriteTo(w, detail)
}

func (a *appliance) writeRecent(_ context.Context, w io.Writer) error {
	if a.own == nil {
		return nil
	}
	for _, line := range a.own.recent.all() {
		if _, err := io.WriteString(w, line); err != nil {
			return err
		}
	}
	return nil
}

// writeFlags leaves out what may be a secret: the arguments of a command that prints the sealing keys.
func (a *appliance) writeFlags(_ context.Context, w io.Writer) error {
	c := a.cfg
	source, err := seal.ParseSource(c.sealKey, filepath.Join(c.dataDir, sealKeyFile))
	if err != nil {
		return err
	}
	return writeJSON(w, map[string]any{
		"data_dir": c.dataDir, "socket": c.socket, "node": c.node, "dev": c.dev, "listen": c.listen, "metrics": c.metrics,
		"local_admin": c.localAdmin, "control": c.control, "advertise": c.advertise, "audit_syslog": c.auditSyslog, "access_log": c.accessLog,
		"serve_revision": c.serveRevision, "seal_key": source.String(), "log_level": strings.ToLower(a.LogLevel().String()),
	})
}

func (a *appliance) writeLoops(_ context.Context, w io.Writer) error {
	return writeJSON(w, a.engine.Stats())
}

func writeJSON(w io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}

// facts are files of the kernel's that say what this process may have and what it shares.
var facts = []string{
	"/proc/self/limits", "/proc/self/status", "/proc/self/cgroup", "/proc/self/net/sockstat", "/proc/self/net/sockstat6", "/proc/self/net/netstat",
	"/proc/version", "/proc/meminfo", "/proc/loadavg", "/proc/stat", "/proc/pressure/cpu", "/proc/pressure/memory", "/proc/pressure/io",
	"/proc/sys/net/core/somaxconn", "/proc/sys/net/ipv4/ip_local_port_range", "/proc/sys/net/ipv4/tcp_max_syn_backlog", "/proc/sys/fs/file-nr",
}

// groupFacts are those of the process's control group.
var groupFacts = []string{"memory.max", "memory.current", "memory.events", "cpu.max", "cpu.stat", "pids.max"}

func (a *appliance) writeFacts(_ context.Context, w io.Writer) error {
	fmt.Fprintf(w, "pid %d, user %d, started %s, %d processors, GOMAXPROCS %d, %d goroutines, memory limit %d\n",
		os.Getpid(), os.Geteuid(), a.started.UTC().Format(time.RFC3339), runtime.NumCPU(), runtime.GOMAXPROCS(0), runtime.NumGoroutine(), debug.SetMemoryLimit(-1))
	for _, name := range []string{"GOGC", "GOMEMLIMIT", "GOMAXPROCS", "GODEBUG", "GOTRACEBACK", "LBD_ENGINE"} {
		if v, ok := os.LookupEnv(name); ok {
			fmt.Fprintf(w, "%s=%s\n", name, v)
		}
	}
	paths := slices.Clone(facts)
	if group, ok := ownGroup("/proc/self/cgroup"); ok {
		for _, name := range groupFacts {
			paths = append(paths, filepath.Join("/sys/fs/cgroup", group, name))
		}
	}
	for _, path := range paths {
		writeFact(w, path)
	}
	return nil
}

// ownGroup is the path of the process's control group, of version 2.
func ownGroup(file string) (string, bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(string(text)) {
		if group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return group, true
		}
	}
	return "", false
}

// writeFact writes a file, or why it cannot be read: many are not everywhere.
func writeFact(w io.Writer, path string) {
	fmt.Fprintf(w, "\n== %s\n", path)
	f, err := os.Open(path)
	if err == nil {
		defer f.Close()
		_, err = io.Copy(w, io.LimitReader(f, factBytesMax))
	}
	if err != nil {
		fmt.Fprintln(w, err)
	}
}

// writeDataDir lists files by name, size and mode; what is in them is nobody's business.
func (a *appliance) writeDataDir(_ context.Context, w io.Writer) error {
	if free, all, ok := diskRoom(a.cfg.dataDir); ok {
		fmt.Fprintf(w, "%d of %d MiB are free\n", free>>20, all>>20)
	}
	return filepath.WalkDir(a.cfg.dataDir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			fmt.Fprintln(w, err)
			return nil
		}
		info, err := os.Lstat(path)
		if err != nil {
			fmt.Fprintln(w, err)
			return nil
		}
		_, err = fmt.Fprintf(w, "%s %12d %s %s\n", info.Mode(), info.Size(), info.ModTime().UTC().Format(time.RFC3339), path)
		return err
	})
}
