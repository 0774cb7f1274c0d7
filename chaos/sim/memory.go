// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"sync"
	"time"

	"phalanx/client/wire"
)

// memory is the host's memory as one process sees it: its bells stop with the process.
type memory struct {
	*wire.HeapMemory
	proc    *process
	trainer bool // its goroutines end at a bell when the process is dead

	mu   sync.Mutex
	page *wire.Page // a trainer's own
}

func (m *memory) Bells(path string) (wire.BellSet, error) {
	b, err := m.HeapMemory.Bells(path)
	if err != nil {
		return nil, err
	}
	return bells{b, m}, nil
}

// OpenPage keeps the page for the checks.
func (m *memory) OpenPage(path string) (*wire.Page, error) {
	p, err := m.HeapMemory.OpenPage(path)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.page = p
	return p, err
}

func (m *memory) own() *wire.Page {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.page
}

type bells struct {
	wire.BellSet
	m *memory
}

func (b bells) Bell(line int) wire.Bell {
	inner := b.BellSet.Bell(line)
	if b.m.trainer {
		b.m.proc.waitsOn(inner)
	}
	return &bell{inner, b.m}
}

type bell struct {
	wire.Bell
	m *memory
}

func (b *bell) pass() {
	if b.m.trainer {
		b.m.proc.must()
	} else {
		b.m.proc.pass()
	}
}

func (b *bell) Ring() {
	b.m.proc.rang()
	if b.m.trainer {
		b.m.proc.must()
	}
	b.m.proc.later(b.Bell.Ring)
}

func (b *bell) Count() uint32 {
	if b.m.trainer {
		b.m.proc.must()
	}
	return b.Bell.Count()
}

func (b *bell) Wait(seen uint32, timeout time.Duration) uint32 {
	b.pass()
	n := b.Bell.Wait(seen, timeout)
	b.pass()
	return n
}
