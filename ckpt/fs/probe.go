// SPDX-License-Identifier: Apache-2.0

package fs

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"phalanx/ckpt"
)

var _ ckpt.Prober = (*Store)(nil)

// shared are the file systems, by the magic number of statfs, that several hosts may have mounted.
var shared = map[int64]string{
	0x6969: "nfs", 0x0BD00BD0: "lustre", 0x47504653: "gpfs", 0x65735546: "fuse", 0x00c36400: "ceph", 0x517B: "smb", 0xFE534D42: "smb2",
	0xff534d42: "cifs", 0x19830326: "beegfs", 0xaad7aaea: "panfs", 0x01021997: "9p",
}

// local are file systems of one host.
var local = map[int64]string{unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlay", 0x2FC12FC1: "zfs"}

// Probe implements ckpt.Prober.
func (s *Store) Probe(ctx context.Context) (*ckpt.Probe, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("fs: probe %s: %w", s.root, err)
	}
	p := &ckpt.Probe{Store: s.Capabilities().Name, Capabilities: s.Capabilities()}
	add := func(name string, has bool, detail, lost string) {
		if has {
			lost = ""
		}
		p.Abilities = append(p.Abilities, ckpt.Ability{Name: name, Has: has, Detail: detail, Lost: lost})
	}
	if s.readOnly {
		return nil, fmt.Errorf("fs: probe %s: opened for reading: %w", s.root, ckpt.ErrReadOnly)
	}
	if err := s.probe(); err != nil {
		return nil, err
	}
	add("write", true, "temporary file, sync, link", "")
	var st unix.Statfs_t
	if err := unix.Statfs(s.root, &st); err != nil {
		return nil, s.explain("probe", s.root, err)
	}
	kind, manyHosts := shared[int64(st.Type)]
	if !manyHosts {
		if kind = local[int64(st.Type)]; kind == "" {
			kind = fmt.Sprintf("%#x", st.Type)
		}
	}
	where := "file system " + kind + " of this host"
	if manyHosts {
		where = "file system " + kind + ", which hosts may share"
	}
	others, err := s.Beacons()
	if err != nil {
		return nil, err
	}
	if len(others) > 0 {
		var names []string
		for _, b := range others {
			names = append(names, b.Host)
		}
		where += "; written to from " + strings.Join(names, ", ")
	}
	add("shared by hosts", manyHosts || len(others) > 1, where, "a job on several hosts needs a directory that all of them see")
	create, err := s.probeExclusive()
	if err != nil {
		return nil, err
	}
	add("conditional create", create, "link fails when the name exists", "two leaders that lost sight of each other are told apart by the job's log only")
	locks, detail := s.probeLock()
	add("locks", locks, detail, "two replacing writers may both believe that they were first; nothing that a checkpoint needs is ever replaced")
	add("checksum is kept", false, "a file has none of its own", "whether an object is whole is known only by reading it: verify --level head proves sizes alone")
	durable := int64(st.Type) != unix.TMPFS_MAGIC
	add("durable", durable, "fsync of file and directory", "it is memory: gone when the host restarts")
	free := int64(st.Bavail) * st.Bsize
	add("room", free > 0, fmt.Sprintf("%.1f GiB free", float64(free)/(1<<30)), "nothing can be saved until somebody makes room")
	return p, nil
}

// probeExclusive reports whether a second link to a name is refused.
func (s *Store) probeExclusive() (bool, error) {
	var names []string
	for range 2 {
		f, err := s.createTemp()
		if err != nil {
			return false, s.explain("probe", s.root, err)
		}
		defer s.discard(f)
		names = append(names, f.Name())
	}
	target := names[0] + "-linked"
	defer os.Remove(target)
	if err := os.Link(names[0], target); err != nil {
		return false, s.explain("probe", s.root, err)
	}
	err := os.Link(names[1], target)
	if err != nil && !errors.Is(err, iofs.ErrExist) {
		return false, s.explain("probe", s.root, err)
	}
	return err != nil, nil
}

// probeLock reports whether a lock keeps another opener out.
func (s *Store) probeLock() (bool, string) {
	f, err := s.createTemp() // which locks it, where there are locks
	if err != nil {
		return false, err.Error()
	}
	defer s.discard(f)
	other, err := os.Open(f.Name())
	if err != nil {
		return false, err.Error()
	}
	defer other.Close()
	err = unix.Flock(int(other.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, "flock"
	}
	return false, fmt.Sprintf("flock does not keep others out (%v)", err)
}

const beaconDir = ".beacons"

// Beacon is the sign that a host has written into the directory.
type Beacon struct {
	Host string
	// At is when it was written, by the clock of the file system.
	At time.Time
}

// WriteBeacon leaves a sign of this host, which others look for to know that the directory is shared. A host has one.
func (s *Store) WriteBeacon(host string) error {
	if ckpt.ValidKey(host) != nil || strings.Contains(host, "/") {
		return fmt.Errorf("fs: beacon of host %.40q: not a name for a file", host)
	}
	dir := filepath.Join(s.root, beaconDir)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return s.explain("write beacon", dir, err)
	}
	f, err := s.createTemp()
	if err != nil {
		return s.explain("write beacon", dir, err)
	}
	defer s.discard(f) // its name is gone when it was renamed
	if err := f.Sync(); err != nil {
		return s.explain("write beacon", dir, err)
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, host)); err != nil {
		return s.explain("write beacon", dir, err)
	}
	return s.syncDir(dir)
}

// Beacons are the signs that hosts have left, by name.
func (s *Store) Beacons() ([]Beacon, error) {
	dir := filepath.Join(s.root, beaconDir)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, s.explain("read beacons", dir, err)
	}
	var found []Beacon
	for _, e := range entries {
		if st, err := e.Info(); err == nil { // else it is being replaced
			found = append(found, Beacon{e.Name(), st.ModTime()})
		}
	}
	return found, nil
}

// AwaitBeacon waits until the directory shows the sign of another host than the one named, or ctx ends: names may appear late
// on shared file systems. Its error is ErrNotShared when there is none.
func (s *Store) AwaitBeacon(ctx context.Context, host string) error {
	for {
		found, err := s.Beacons()
		if err != nil {
			return err
		}
		for _, b := range found {
			if b.Host != host {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("fs: %s shows no sign of another host: %w", s.root, ErrNotShared)
		case <-time.After(200 * time.Millisecond): // the least that attribute caches keep is seconds
		}
	}
}

// ErrNotShared: what other hosts have written is not seen here.
var ErrNotShared = errors.New("the directory is not shared")
