// SPDX-License-Identifier: Apache-2.0

package consensus

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

var (
	keyIdentity = []byte("phalanx.identity")
	keyCanary   = []byte("phalanx.canary")
)

const (
	storeFile   = "log.db"
	asidePrefix = "log.db.aside-"

	// lockWait is how long a daemon waits for the one before it to let go of the store.
	lockWait = 2 * time.Second

	// reservedBytes of the store are written before it is used. Where a file system has still to find blocks for what is written,
	// or to change the length of the file, a sync waits for its journal too, and with that for what others write.
	reservedBytes = 4 << 20
)

// identity is kept inside the log store: it must never outlive the votes and entries that were given under it.
type identity struct {
	Version  int    `json:"version"`
	ServerID string `json:"server_id"`
	JobID    string `json:"job_id"`
}

// openStore opens or creates the log store and the identity in it. A store that does not open or does not know who it is
// is set aside, never repaired: entries that this server acknowledged may be missing from it, so it may not vote under the
// same name.
func openStore(cfg *Config) (LogStore, identity, error) {
	dir, open := cfg.Dir, cfg.OpenStore
	if open == nil {
		open = func(path string) (LogStore, error) { return openBolt(path, cfg.NoSync, cfg.Logger) }
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, identity{}, fmt.Errorf("create directory of the log: %w", err)
	}
	path := filepath.Join(dir, storeFile)
	store, id, err := openStoreFile(open, path, cfg.JobID)
	if err == nil || errors.Is(err, ErrLocked) || errors.Is(err, ErrOtherJob) || !errors.Is(err, errDamaged) {
		return store, id, err
	}
	aside := filepath.Join(dir, asidePrefix+time.Now().UTC().Format("20060102T150405.000000000"))
	cfg.Logger.Warn("log store is damaged: set aside, this server gets a new id", "err", err, "aside", aside)
	if err := os.Rename(path, aside); err != nil {
		return nil, identity{}, fmt.Errorf("set damaged log store aside: %w", err)
	}
	return openStoreFile(open, path, cfg.JobID)
}

var errDamaged = errors.New("damaged")

// openBolt opens or makes a store in one file.
func openBolt(path string, noSync bool, logger *slog.Logger) (LogStore, error) {
	store, err := raftboltdb.New(raftboltdb.Options{Path: path, NoSync: noSync, BoltOptions: &bbolt.Options{Timeout: lockWait}})
	if err != nil {
		return nil, err // not a nil *BoltStore in an interface
	}
	if !noSync {
		if err := reserve(path, reservedBytes); err != nil {
			logger.Debug("log store is not reserved; its writes are slower", "err", err)
		}
	}
	return store, nil
}

func openStoreFile(open func(string) (LogStore, error), path, job string) (LogStore, identity, error) {
	var store LogStore
	err := callStore(func() (err error) { store, err = open(path); return err })
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, identity{}, fmt.Errorf("open %s: %w", path, ErrLocked)
	case errors.Is(err, os.ErrPermission), errors.Is(err, os.ErrNotExist):
		return nil, identity{}, fmt.Errorf("open log store: %w", err)
	case err != nil:
		return nil, identity{}, fmt.Errorf("open %s: %w: %w", path, errDamaged, err)
	}
	var id identity
	err = callStore(func() (err error) { id, err = loadIdentity(store, job); return err })
	if err != nil {
		return nil, identity{}, errors.Join(fmt.Errorf("identity in %s: %w", path, err), store.Close())
	}
	return store, id, nil
}

// reserve writes zeros behind the end of the store, whose lock is held: its pages come to lie there, and none does yet.
func reserve(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("reserve log store: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("reserve log store: %w", err)
	}
	if info.Size() >= size {
		return nil
	}
	if _, err := f.WriteAt(make([]byte, size-info.Size()), info.Size()); err != nil {
		return errors.Join(fmt.Errorf("reserve log store: %w", err), f.Truncate(info.Size()))
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("reserve log store: %w", err)
	}
	return nil
}

func loadIdentity(store LogStore, job string) (identity, error) {
	encoded, err := store.Get(keyIdentity)
	if err == nil {
		var id identity
		if err := json.Unmarshal(encoded, &id); err != nil || id.Version != 1 || id.ServerID == "" {
			return identity{}, fmt.Errorf("%w: it cannot be read", errDamaged)
		}
		if id.JobID != job {
			return identity{}, fmt.Errorf("job %q, not %q: %w", id.JobID, job, ErrOtherJob)
		}
		return id, nil
	}
	if !errors.Is(err, ErrKeyNotFound) {
		return identity{}, err
	}
	last, err := store.LastIndex()
	if err != nil {
		return identity{}, err
	}
	if last > 0 {
		return identity{}, fmt.Errorf("%w: it has entries and no identity", errDamaged)
	}
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return identity{}, err
	}
	id := identity{Version: 1, ServerID: hex.EncodeToString(random[:]), JobID: job}
	if encoded, err = json.Marshal(id); err != nil {
		return identity{}, err
	}
	return id, store.Set(keyIdentity, encoded)
}

// openSnapshots opens the snapshots of one identity. Those of an earlier one are of no use without its log.
func openSnapshots(dir, serverID string, logger *raftLogger) (raft.SnapshotStore, error) {
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(filepath.Join(dir, serverID), snapshotsKept, logger)
	if err != nil {
		return nil, fmt.Errorf("open snapshots of server %s: %w", serverID, err)
	}
	return snapshots, nil
}

// setAside reports whether an earlier store of this directory was damaged: state of the job did exist.
func setAside(dir string) bool {
	names, err := filepath.Glob(filepath.Join(dir, asidePrefix+"*"))
	return err == nil && len(names) > 0
}

// Wipe removes the log, the snapshots and with them the identity of a server that was removed from the group, so that the
// next Open makes a new server. No Log may be open in the directory.
func Wipe(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("wipe log: %w", err)
	}
	return nil
}
