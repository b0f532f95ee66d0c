package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
)

// background is a process that started this one in the background and waits until it serves. The zero one is nobody.
type background struct{ file *os.File }

// startedBy is the one at the other end of a descriptor; 0: nobody.
func startedBy(fd int) (background, error) {
	if fd == 0 {
		return background{}, nil
	}
	f := os.NewFile(uintptr(fd), "ready")
	if f == nil {
		return background{}, fmt.Errorf("--ready-fd %d: no such file", fd)
	}
	if _, err := f.Stat(); err != nil {
		return background{}, fmt.Errorf("--ready-fd %d: %w", fd, err)
	}
	syscall.CloseOnExec(fd)
	return background{f}, nil
}

// ready says that this process serves.
func (b background) ready() {
	if b.file == nil {
		return
	}
	_, _ = b.file.WriteString("ready\n") // who has stopped waiting does not hear
	_ = b.file.Close()
}

// detach starts this program again in the background, in a session of its own, and returns when that serves, or has ended without. What it says
// goes where this one's words go.
func detach() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(a string) bool { return a == "--detach" || a == "--detach=true" })
	child := exec.Command(self, append(args, "--ready-fd="+strconv.Itoa(3))...)
	child.Stdout, child.Stderr, child.ExtraFiles = os.Stdout, os.Stderr, []*os.File{write}
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	err = errors.Join(child.Start(), write.Close())
	if err != nil {
		return err
	}
	serves := make(chan bool, 1)
	go func() {
		line, _ := bufio.NewReader(read).ReadString('\n') // at the latest when the child ends
		serves <- line == "ready\n"
	}()
	select {
	case <-signals: // who started this does not want the other one any more either
		_ = child.Process.Signal(syscall.SIGTERM)
		return errors.Join(errors.New("told to end before the node served"), child.Wait())
	case yes := <-serves:
		if yes {
			return child.Process.Release()
		}
		return fmt.Errorf("the node has ended before it served: %w", child.Wait())
	}
}
