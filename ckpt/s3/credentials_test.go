// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"errors"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// scripted gives out credentials that live for a time, or fails.
type scripted struct {
	lives time.Duration
	err   error
	asked int
}

func (s *scripted) Retrieve() (credentials.Value, error) { return s.RetrieveWithCredContext(nil) }

func (s *scripted) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	s.asked++
	return credentials.Value{AccessKeyID: "id", SecretAccessKey: "secret", Expiration: time.Now().Add(s.lives)}, s.err
}

func (s *scripted) IsExpired() bool { return s.asked == 0 }

// TestAhead: credentials are renewed before they end, and while that fails those that still live are used.
func TestAhead(t *testing.T) {
	inner := &scripted{lives: time.Hour}
	a := &ahead{inner: inner}
	c := credentials.New(a)
	get := func(wantAsked int, wantErr bool) {
		t.Helper()
		if v, err := c.GetWithContext(nil); (err != nil) != wantErr || !wantErr && v.AccessKeyID != "id" || inner.asked != wantAsked {
			t.Fatalf("%+v, %v after asking %d times, want %d", v.AccessKeyID, err, inner.asked, wantAsked)
		}
	}
	get(1, false)
	get(1, false)
	if before := time.Until(a.value.Expiration) - time.Until(a.renew); before < renewAhead-time.Second || before > renewAhead+time.Second {
		t.Fatalf("an hour is renewed %s ahead, want %s", before, renewAhead)
	}
	a.renew = time.Now().Add(-time.Second)
	inner.err = errors.New("the token service is away")
	get(2, false) // the old ones still live
	get(2, false) // and the service is not asked at every request
	a.retry = time.Now().Add(-time.Second)
	a.value.Expiration = time.Now().Add(-time.Second)
	get(3, true)
	inner.err = nil
	get(4, false)
}
