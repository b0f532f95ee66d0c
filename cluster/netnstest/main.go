//go:build linux

package netnstest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// binariesVariable tells the process inside where the binaries are; it is how that process knows that it is inside.
const binariesVariable = "LBD_NETNS_BINARIES"

// Main is what TestMain calls. It lets build put binaries into a folder, and runs the tests in user (unless root), network, mount
// and process namespaces of their own. It never skips: where namespaces are refused, the exit code says failure and stderr why.
func Main(m *testing.M, build func(dir string) error) int {
	if os.Getenv(binariesVariable) != "" {
		if err := settle(); err != nil {
			fmt.Fprintln(os.Stderr, "netnstest: inside the new namespaces:", err)
			return 1
		}
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "lbd-netns-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := build(dir); err != nil {
		fmt.Fprintln(os.Stderr, "building the binaries:", err)
		return 1
	}
	return apart(dir)
}

// Binaries is the folder that Main's build has filled.
func Binaries() string { return os.Getenv(binariesVariable) }

// apart runs this program again, inside, and returns its exit code. As the first process of its process namespace it takes all
// that it has started with it when it ends.
func apart(binaries string) int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), binariesVariable+"="+binaries)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	attributes := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		attributes.Cloneflags |= syscall.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	cmd.SysProcAttr = attributes
	// An interrupt reaches the tests by the terminal, and a timeout of `go test` kills this process, and so that one.
	signal.Ignore(os.Interrupt)
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintf(os.Stderr, "netnstest: %v\nThese tests need network and mount namespaces: as root, or where users may make user namespaces (kernel.unprivileged_userns_clone, user.max_user_namespaces).\n", err)
		return 1
	}
	return 0
}

// settle makes the new namespaces a place to work in: a /proc of its own processes, a /run of its own, where ip keeps its hosts.
func settle() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to itself: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("run", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	return run("", "ip", "link", "set", "lo", "up")
}
