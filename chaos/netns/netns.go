// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// prefix begins the names of everything made here. The pid of the maker follows, so that what a killed test left is known,
// and a number, so that one process may have several networks at a time.
const prefix = "phalanx-"

// shmRoot is where the hosts' own /dev/shm are: folders of the machine's.
const shmRoot = "/dev/shm"

// killTimeout is how long processes may take to vanish after SIGKILL.
const killTimeout = 10 * time.Second

// made counts the networks of this process.
var made atomic.Int64

// swept is this process's one look for what others left.
var swept sync.Once

// Net is a few hosts at one switch.
type Net struct {
	Hosts []*Host
	name  string // also of the switch's namespace
}

// Host is one namespace with an address and a /dev/shm of its own.
type Host struct {
	Name string
	Addr netip.Addr
	ns   string
	port string // the switch's end of its cable
	net  *Net
}

// New makes hosts with the given names, at 10.77.0.1 and up, connected with each other and with nothing else. The error of a
// machine on which this is not possible says what is missing. Close removes everything.
func New(names ...string) (n *Net, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("network namespaces need root: run this as root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, errors.New("network namespaces need the ip command: install iproute2")
	}
	swept.Do(sweep)
	n = &Net{name: fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), made.Add(1))}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	if err := ip("netns", "add", n.name); err != nil {
		return n, fmt.Errorf("make a network namespace (a container needs CAP_SYS_ADMIN for it): %w", err)
	}
	if err := n.inSwitch("link", "add", "bridge", "type", "bridge"); err != nil {
		return n, err
	}
	if err := n.inSwitch("link", "set", "bridge", "up"); err != nil {
		return n, err
	}
	for i, name := range names {
		h := &Host{Name: name, Addr: netip.AddrFrom4([4]byte{10, 77, 0, byte(i + 1)}), ns: n.name + "-" + name, port: "port" + strconv.Itoa(i), net: n}
		n.Hosts = append(n.Hosts, h)
		if err := h.make(); err != nil {
			return n, fmt.Errorf("make host %s: %w", name, err)
		}
	}
	return n, nil
}

func (h *Host) make() error {
	if err := os.MkdirAll(h.shm(), 0o700); err != nil {
		return err
	}
	if err := ip("netns", "add", h.ns); err != nil {
		return err
	}
	if err := ip("-n", h.net.name, "link", "add", h.port, "type", "veth", "peer", "name", "eth0", "netns", h.ns); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"-n", h.net.name, "link", "set", h.port, "master", "bridge", "up"},
		{"-n", h.ns, "address", "add", h.Addr.String() + "/24", "dev", "eth0"},
		{"-n", h.ns, "link", "set", "lo", "up"},
		{"-n", h.ns, "link", "set", "eth0", "up"},
	} {
		if err := ip(args...); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) shm() string { return filepath.Join(shmRoot, h.ns) }

// Command is a command that will run on the host. The process that it starts is the program itself.
func (h *Host) Command(program string, args ...string) *exec.Cmd {
	// ip gives the process mounts of its own, so the host's memory hides the machine's from it alone.
	inside := append([]string{"netns", "exec", h.ns, "sh", "-c", `mount --bind "$0" /dev/shm && exec "$@"`, h.shm(), program}, args...)
	return exec.Command("ip", inside...)
}

// Cut pulls the host's cable.
func (h *Host) Cut() error { return h.net.inSwitch("link", "set", h.port, "down") }

// Mend puts it back.
func (h *Host) Mend() error { return h.net.inSwitch("link", "set", h.port, "up") }

// Kill ends every process on the host at once and waits until they are gone. Its memory stays, as after a crash of programs,
// unless Reboot follows.
func (h *Host) Kill() error {
	for end := time.Now().Add(killTimeout); ; time.Sleep(10 * time.Millisecond) { // the kernel tells nobody who is no parent
		pids, err := h.pids()
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("processes %v of host %s do not end", pids, h.Name)
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // gone already is as good
		}
	}
}

// Reboot ends every process on the host and empties its memory.
func (h *Host) Reboot() error {
	if err := h.Kill(); err != nil {
		return err
	}
	if err := os.RemoveAll(h.shm()); err != nil {
		return err
	}
	return os.Mkdir(h.shm(), 0o700)
}

// pids lists the processes on the host that are not dead yet.
func (h *Host) pids() ([]int, error) {
	out, err := exec.Command("ip", "netns", "pids", h.ns).Output()
	if err != nil {
		return nil, fmt.Errorf("list the processes of host %s: %w", h.Name, err)
	}
	var pids []int
	for field := range strings.FieldsSeq(string(out)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("list the processes of host %s: %q", h.Name, field)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// Close ends all processes on the hosts and removes the hosts. Closing twice is fine.
func (n *Net) Close() error {
	var errs []error
	for _, h := range n.Hosts {
		if _, err := os.Stat(filepath.Join("/run/netns", h.ns)); err == nil {
			errs = append(errs, h.Kill(), ip("netns", "delete", h.ns))
		}
		errs = append(errs, os.RemoveAll(h.shm()))
	}
	n.Hosts = nil
	if _, err := os.Stat(filepath.Join("/run/netns", n.name)); err == nil {
		errs = append(errs, ip("netns", "delete", n.name))
	}
	return errors.Join(errs...)
}

func (n *Net) inSwitch(args ...string) error { return ip(append([]string{"-n", n.name}, args...)...) }

// sweep removes what makers left that were killed: processes, namespaces, memory. What does not go stays for the next one.
func sweep() {
	names, _ := filepath.Glob(filepath.Join("/run/netns", prefix+"*"))
	for _, path := range names {
		if name := filepath.Base(path); abandoned(name) {
			old := &Host{Name: name, ns: name}
			if old.Kill() == nil {
				_ = ip("netns", "delete", name)
			}
		}
	}
	memories, _ := filepath.Glob(filepath.Join(shmRoot, prefix+"*"))
	for _, path := range memories {
		name := filepath.Base(path)
		if _, err := os.Stat(filepath.Join("/run/netns", name)); abandoned(name) && err != nil {
			_ = os.RemoveAll(path)
		}
	}
}

// abandoned reports whether the maker of the thing with this name is dead.
func abandoned(name string) bool {
	owner, _, _ := strings.Cut(strings.TrimPrefix(name, prefix), "-")
	pid, err := strconv.Atoi(owner)
	return err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
