// SPDX-License-Identifier: Apache-2.0

package intake

import (
	"context"
	"errors"
	"time"

	"phalanx"
	"phalanx/ckpt"
)

// beginRequest asks for an attempt to save a step.
type beginRequest struct {
	Job        string       `json:"job"`
	Step       phalanx.Step `json:"step"`
	Generation uint64       `json:"generation"` // in which the program was started; 0: in none
	NewBranch  bool         `json:"new_branch"`
}

// begun names it. Nothing is written yet.
type begun struct {
	Job     string `json:"job"`
	Attempt string `json:"attempt"`
	Branch  uint64 `json:"branch"`
}

func (s *Service) begin(ctx context.Context, q beginRequest) (begun, error) {
	job, err := s.job(q.Job)
	if err != nil {
		return begun{}, err
	}
	if job == s.Own {
		return begun{}, usage("the checkpoints of job %s are those of its steps, which it resumes from; name another, or none for %s", job, s.Job)
	}
	b, err := ckpt.Begin(ctx, s.Store, job, q.Step, ckpt.BeginOptions{Generation: q.Generation, NewBranch: q.NewBranch, Term: newTerm()})
	if err != nil {
		return begun{}, err
	}
	return begun{job, b.Attempt.Name(), b.Branch}, nil
}

// writeRequest hands boxes over that lie in memory that the program shares.
type writeRequest struct {
	Job     string       `json:"job"`
	Attempt string       `json:"attempt"`
	Writer  phalanx.Rank `json:"writer"`
	Batch   int          `json:"batch"`
	Memory  string       `json:"memory"` // /proc/PID/fd/N
	// Boxes are elements, row-major, or the bytes of a value.
	Boxes []box `json:"boxes"`
	// Records are files of torch.save: of one tensor each, else values.
	Records     []record `json:"records"`
	ObjectBytes int64    `json:"object_bytes"` // 0: the default
}

type box struct {
	ckpt.SheetBox
	Offset int64 `json:"offset"` // of its first byte in the memory
}

// record is a file of torch.save at Offset of the memory, which the index will have at At of File.
type record struct {
	File   string `json:"file"`
	At     int64  `json:"at"`
	Length int64  `json:"length"`
	Offset int64  `json:"offset"`
}

type written struct {
	Objects int   `json:"objects"`
	Bytes   int64 `json:"size_bytes"` // of all objects
}

func (s *Service) write(ctx context.Context, q writeRequest) (written, error) {
	a, err := s.attempt(q.Job, q.Attempt)
	if err != nil {
		return written{}, err
	}
	m, err := openMemory(q.Memory)
	if err != nil {
		return written{}, err
	}
	defer m.close()
	for _, b := range q.Boxes {
		if err := m.box(b); err != nil {
			return written{}, err
		}
	}
	for _, r := range q.Records {
		if err := m.record(r); err != nil {
			return written{}, err
		}
	}
	sheet, err := ckpt.WriteSheet(ctx, s.Store, a, q.Writer, q.Batch, m.boxes, m, ckpt.PlanOptions{ObjectBytes: q.ObjectBytes})
	if err != nil {
		return written{}, err
	}
	w := written{Objects: len(sheet.Objects)}
	for _, o := range sheet.Objects {
		w.Bytes += o.Size
	}
	return w, nil
}

type publishRequest struct {
	Job     string `json:"job"`
	Attempt string `json:"attempt"`
	Branch  uint64 `json:"branch"`
	Index   []byte `json:"index"` // base64 of PyTorch's .metadata
}

type published struct {
	Number uint64       `json:"number"`
	Job    string       `json:"job"`
	Folder string       `json:"folder"`
	Step   phalanx.Step `json:"step"`
	Bytes  int64        `json:"size_bytes"`
}

// publishWait bounds a publish: the outcome of a write that nobody answers is asked for again until then.
const publishWait = 2 * time.Minute

func (s *Service) publish(ctx context.Context, q publishRequest) (published, error) {
	a, err := s.attempt(q.Job, q.Attempt)
	if err != nil {
		return published{}, err
	}
	// A program that hangs up must not leave it open whether it was published.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishWait)
	defer cancel()
	h := ckpt.Handed{Attempt: a, Branch: q.Branch, Index: q.Index, UnixNS: time.Now().UnixNano()}
	r, err := ckpt.PublishHanded(ctx, s.Store, h)
	for errors.Is(err, ckpt.ErrConflict) && ctx.Err() == nil { // unknown: ask again before deciding
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
		r, err = ckpt.PublishHanded(ctx, s.Store, h)
	}
	if err != nil {
		return published{}, err
	}
	s.Log.Info("checkpoint published", "step", uint64(a.Step), "folder", a.Folder())
	s.prune(a.Job)
	p := published{Number: r.Number, Job: a.Job, Folder: a.Folder(), Step: a.Step}
	if r.Commit != nil {
		for _, st := range r.Commit.States {
			p.Bytes += st.Bytes
		}
	}
	return p, nil
}

type abortRequest struct {
	Job     string `json:"job"`
	Attempt string `json:"attempt"`
	Why     string `json:"why"`
}

type aborted struct {
	OK bool `json:"ok"`
}

func (s *Service) abort(ctx context.Context, q abortRequest) (aborted, error) {
	a, err := s.attempt(q.Job, q.Attempt)
	if err != nil {
		return aborted{}, err
	}
	if err := ckpt.Abort(ctx, s.Store, a); err != nil {
		return aborted{}, err
	}
	s.Log.Info("save given up", "folder", a.Folder(), "why", q.Why)
	return aborted{true}, nil
}

// pruneWait bounds one run of retention. What it leaves the next one does.
const pruneWait = 10 * time.Minute

// prune applies the policy of retention in the background, one at a time. Its failure harms nothing: the next one tries again.
func (s *Service) prune(job string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Retain == nil || s.pruning {
		return
	}
	s.pruning = true
	s.prunings.Go(func() {
		ctx, cancel := context.WithTimeout(s.stop, pruneWait)
		defer cancel()
		err := s.retain(ctx, job, time.Now())
		if err != nil && s.stop.Err() == nil {
			s.Log.Warn("old checkpoints are not removed", "error", err)
		}
		s.mu.Lock()
		s.pruning = false
		s.mu.Unlock()
	})
}

func (s *Service) retain(ctx context.Context, job string, now time.Time) error {
	inv, err := ckpt.TakeInventory(ctx, s.Store, job, nil)
	if err != nil {
		return err
	}
	drops := ckpt.Drops(s.Retain.Decide(inv, now))
	if _, err := ckpt.Forget(ctx, s.Store, inv, drops, ckpt.ForgetOptions{Now: now, Grace: s.Grace, By: s.By}); err != nil {
		return err
	}
	if inv, err = ckpt.TakeInventory(ctx, s.Store, job, nil); err != nil {
		return err
	}
	_, err = ckpt.GC(ctx, s.Store, inv, ckpt.GCOptions{Now: now, AbandonedGrace: s.Grace, By: s.By})
	return err
}
