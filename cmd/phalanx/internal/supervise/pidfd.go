// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// waitPID opens a process and calls ended once, from another goroutine, when it has ended. It works for any process, child
// or not. close makes the goroutine return without a call; it may be called at any time, also twice.
func waitPID(pid int, ended func()) (closer func(), err error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	file := os.NewFile(uintptr(fd), fmt.Sprintf("pidfd of %d", pid))
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	go func() { // ends with the process, or when the file is closed
		err := raw.Read(func(fd uintptr) bool {
			n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0
		})
		if err == nil {
			ended()
		}
	}()
	return func() { file.Close() }, nil
}

// exitStatus is how a child ended, for messages.
func exitStatus(s unix.WaitStatus) string {
	if s.Signaled() {
		return "killed by " + unix.SignalName(s.Signal())
	}
	return fmt.Sprintf("exit status %d", s.ExitStatus())
}
