// SPDX-License-Identifier: Apache-2.0

package ckpt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/minio/crc64nvme"
)

// What callers of a Store branch on. Every other error means that the operation had no effect and may be tried again.
var (
	// ErrNotFound: no object has this key, or the range begins beyond its end.
	ErrNotFound = errors.New("object not found")
	// ErrExists: the object exists already (PutIfAbsent), or is no longer the one named (PutIfMatch). Final: nothing was
	// written.
	ErrExists = errors.New("object exists")
	// ErrConflict: the outcome is unknown. The write may have happened, may happen later, or never. Read before deciding;
	// the same bytes may be offered again.
	ErrConflict = errors.New("outcome unknown")
	// ErrCorrupt: bytes do not have the checksum they must have.
	ErrCorrupt = errors.New("checksum differs")
	// ErrDamaged is an ErrCorrupt that no checksum found: bytes are missing, or are not what their format says.
	ErrDamaged error = damaged{}
	// ErrReadOnly: the store or its credentials allow no writing.
	ErrReadOnly = errors.New("store is read-only")
	// ErrUnavailable: the store did not answer, failed inside or asked to come later. Nothing was written. It heals by itself.
	ErrUnavailable = errors.New("store is unavailable")
	// ErrNoSpace: the store has no room. Nothing was written. It heals when somebody makes room.
	ErrNoSpace = errors.New("no space left")
	// ErrAuth: the store does not know the credentials, they allow too little, or the clocks differ too much. Somebody has
	// to change something.
	ErrAuth = errors.New("not authorized")
)

// damaged is ErrDamaged.
type damaged struct{}

func (damaged) Error() string { return "damaged" }

// Is makes it an ErrCorrupt.
func (damaged) Is(target error) bool { return target == ErrCorrupt }

// Store keeps objects: byte strings with a key, written whole and once.
//
// Guarantees that every implementation gives, and that storetest checks:
//   - an object is seen whole or not at all, however the writer ends;
//   - when a Put returns nil the object is durable and Get, Stat and List of this process see it;
//   - of any number of concurrent PutIfAbsent of one key exactly one succeeds, the others get ErrExists;
//   - PutIfAbsent and Put return ErrCorrupt, and leave no object, when the body does not have its checksum;
//   - List gives keys in ascending byte order, without gaps for objects that exist during the whole call;
//   - every call ends soon after its ctx does.
//
// Keys are slash-separated, see ValidKey. A Store is safe for concurrent use.
type Store interface {
	// PutIfAbsent creates an object. ErrExists, ErrConflict, ErrCorrupt or ErrReadOnly as above.
	PutIfAbsent(ctx context.Context, key string, body Body) error
	// Put creates or replaces an object. Nothing that a checkpoint needs is ever replaced; it is for hints and probes.
	Put(ctx context.Context, key string, body Body) error
	// PutIfMatch replaces an object whose ETag is still etag; ErrExists when it is not, ErrNotFound when it is gone.
	PutIfMatch(ctx context.Context, key, etag string, body Body) error
	// Get reads n bytes from offset off; n < 0 means to the end. It returns fewer only where the object ends. Reading an
	// empty object from 0 gives no bytes and no error.
	Get(ctx context.Context, key string, off, n int64) ([]byte, error)
	// Stat describes an object without reading it.
	Stat(ctx context.Context, key string) (Info, error)
	// List gives at most limit objects (0: as many as the store likes to give at once, at least 1) whose keys begin with
	// prefix and are greater than after. No objects means that there are no more.
	List(ctx context.Context, prefix, after string, limit int) ([]Info, error)
	// Delete removes an object; removing one that is not there is no error.
	Delete(ctx context.Context, key string) error
	// Capabilities says what the store can do; it does not change while the store is open.
	Capabilities() Capabilities
}

// Info describes an object.
type Info struct {
	Key  string
	Size int64
	// ETag changes whenever the object is replaced.
	ETag string
	// CRC64NVME is the checksum that the store keeps beside the object, if HasCRC.
	CRC64NVME CRC
	HasCRC    bool
}

// Capabilities says what a store can do. Publishing needs ConditionalCreate to be fenced by the store itself.
type Capabilities struct {
	// Name is the URL of the store, by which it can be opened again; it holds no secret.
	Name string `json:"name"`
	// Untried: what follows of conditions and checksums is not known, because nothing was written yet; it reads as absent.
	Untried bool `json:"untried,omitempty"`
	// ConditionalCreate: PutIfAbsent is exclusive among all writers, on all hosts.
	ConditionalCreate bool `json:"conditional_create"`
	// ConditionalReplace: PutIfMatch likewise.
	ConditionalReplace bool `json:"conditional_replace"`
	// KeepsChecksum: Stat returns a CRC64NVME that was verified when the object was written.
	KeepsChecksum bool `json:"keeps_checksum"`
	// Durable: objects outlive the process.
	Durable bool `json:"durable"`
	// MaxObjectBytes is the largest object that one Put takes; 0 is no limit.
	MaxObjectBytes int64 `json:"max_object_bytes"`
}

// Body is the content of an object to be written: size and checksum are known before the first byte is sent. It can be
// read more than once, so that a store may try again.
type Body struct {
	ReaderAt  io.ReaderAt
	Size      int64
	CRC64NVME CRC
}

// Bytes makes a body of p, which must not change until the Put returns.
func Bytes(p []byte) Body {
	return Body{ReaderAt: memory(p), Size: int64(len(p)), CRC64NVME: Checksum(p)}
}

// Reader reads the body from its beginning.
func (b Body) Reader() io.Reader { return io.NewSectionReader(b.ReaderAt, 0, b.Size) }

// CRC is a CRC-64/NVME. Its text form is 16 hex digits.
type CRC uint64

// Checksum is the CRC-64/NVME of p.
func Checksum(p []byte) CRC { return CRC(crc64nvme.Checksum(p)) }

func (c CRC) String() string { return fmt.Sprintf("%016x", uint64(c)) }

// MarshalText makes checksums hex strings in JSON: a JSON number holds only 53 bits exactly.
func (c CRC) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads 16 hex digits.
func (c *CRC) UnmarshalText(text []byte) error {
	var v uint64
	if len(text) != 16 {
		return fmt.Errorf("checksum %.40q: want 16 hex digits", text)
	}
	for _, d := range text {
		switch {
		case d >= '0' && d <= '9':
			v = v<<4 | uint64(d-'0')
		case d >= 'a' && d <= 'f':
			v = v<<4 | uint64(d-'a'+10)
		default:
			return fmt.Errorf("checksum %.40q: want 16 hex digits", text)
		}
	}
	*c = CRC(v)
	return nil
}

// MaxKeyBytes bounds a key; S3 allows 1024.
const MaxKeyBytes = 768

// MetadataName is the name that PyTorch's distributed checkpoints give their index.
const MetadataName = ".metadata"

// ValidKey says why a key cannot be used, nil when it can: 1 to MaxKeyBytes bytes of A-Z a-z 0-9 . _ - in elements
// separated by single slashes, no element longer than 200 bytes or beginning with a dot, but for a last one that is
// MetadataName. The set is small so that a key is the same in a URL, a file name and a shell.
func ValidKey(key string) error {
	if key == "" || len(key) > MaxKeyBytes {
		return fmt.Errorf("key %.60q: want 1 to %d bytes", key, MaxKeyBytes)
	}
	checked := key
	if strings.HasSuffix(key, "/"+MetadataName) {
		checked = strings.TrimSuffix(key, "/"+MetadataName)
	}
	for element := range strings.SplitSeq(checked, "/") {
		switch {
		case element == "":
			return fmt.Errorf("key %.60q: empty element", key)
		case element[0] == '.':
			return fmt.Errorf("key %.60q: element %.40q begins with a dot", key, element)
		case len(element) > 200:
			return fmt.Errorf("key %.60q: element longer than 200 bytes", key)
		}
		for _, c := range []byte(element) {
			if !keyByte(c) {
				return fmt.Errorf("key %.60q: character %q is not allowed", key, c)
			}
		}
	}
	return nil
}

func keyByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
}

// ListAll calls List until nothing is left.
func ListAll(ctx context.Context, s Store, prefix string) ([]Info, error) {
	var all []Info
	after := ""
	for {
		page, err := s.List(ctx, prefix, after, 0)
		if err != nil {
			return nil, err
		}
		if len(page) == 0 {
			return all, nil
		}
		all = append(all, page...)
		after = page[len(page)-1].Key
	}
}

// readWhole reads an object that must not be larger than limit.
func readWhole(ctx context.Context, s Store, key string, limit int64) ([]byte, error) {
	p, err := s.Get(ctx, key, 0, limit+1)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	if int64(len(p)) > limit {
		return nil, fmt.Errorf("read %s: larger than %d bytes: %w", key, limit, ErrDamaged)
	}
	return p, nil
}
