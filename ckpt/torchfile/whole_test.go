// SPDX-License-Identifier: Apache-2.0

package torchfile

import (
	"fmt"
	"hash/crc32"
	"io"

	"phalanx/ckpt/pickle/pickletest"
)

// WriteTo writes the elements of a tensor in row-major order, little-endian, after its storage's checksum.
func (f *File) WriteTo(w io.Writer, t *Tensor) error {
	if err := t.Readable(); err != nil {
		return err
	}
	storage, err := f.storage(t)
	if err != nil {
		return err
	}
	p, err := pickletest.Elements(&t.Tensor, storage, t.Swap)
	if err != nil {
		return fmt.Errorf("tensor %.200q: %w", t.Name, err)
	}
	_, err = w.Write(p)
	return err
}

// Verify compares the checksum of a tensor's storage.
func (f *File) Verify(t *Tensor) error {
	_, err := f.storage(t)
	return err
}

// storage reads a tensor's whole storage.
func (f *File) storage(t *Tensor) ([]byte, error) {
	at, err := f.Locate(t)
	if err != nil {
		return nil, err
	}
	p := make([]byte, t.StorageBytes)
	if err := readFull(f.archive.ra, p, at); err != nil {
		return nil, fmt.Errorf("tensor %.200q: %w", t.Name, err)
	}
	if err := f.archive.sameSum(member(t.Storage), crc32.ChecksumIEEE(p)); err != nil {
		return nil, fmt.Errorf("tensor %.200q: %w", t.Name, err)
	}
	return p, nil
}
