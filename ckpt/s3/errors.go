// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"phalanx/ckpt"
)

// cause is why a request failed, as far as it decides what happens next.
type cause int

const (
	causeOther        cause = iota
	causeNotFound           // no such key
	causeNoBucket           // no such bucket
	causePrecondition       // 412: the condition did not hold; final
	causeConflict           // 409: another conditional write was running; nothing was written
	causeBusy               // the store asks to slow down; nothing was written
	causeServer             // it failed inside; a write may have happened
	causeNoAnswer           // sent, but no answer came; a write may have happened
	causeUnreachable        // never sent
	causeCancelled          // the caller's ctx ended
	causeExpired            // the credentials have ended
	causeAuth               // unknown key, wrong secret or signature
	causeSkew               // the clocks differ too much
	causeDenied             // known, but not allowed
	causeRegion             // the bucket is elsewhere
	causeDigest             // the body has not the checksum that was announced
	causeRange              // begins beyond the end
	causeTooLarge           // for one PUT
	causeUnsupported        // the store does not know this header, or this way to send a body
	causeTLS                // the certificate is not trusted, or the other side speaks no TLS
)

// byCode are the codes of S3 that decide, whatever the status is.
var byCode = map[string]cause{
	"NoSuchKey": causeNotFound, "NotFound": causeNotFound, "NoSuchVersion": causeNotFound,
	"NoSuchBucket": causeNoBucket, "InvalidBucketName": causeNoBucket,
	"PreconditionFailed": causePrecondition, "ConditionalRequestConflict": causeConflict, "OperationAborted": causeConflict,
	"SlowDown": causeBusy, "SlowDownRead": causeBusy, "SlowDownWrite": causeBusy, "TooManyRequests": causeBusy, "Throttling": causeBusy,
	"ThrottlingException": causeBusy, "RequestLimitExceeded": causeBusy, "RequestThrottled": causeBusy, "RequestTimeout": causeBusy,
	"ExpiredToken": causeExpired, "ExpiredTokenException": causeExpired, "TokenRefreshRequired": causeExpired, "RequestExpired": causeExpired,
	"InvalidAccessKeyId": causeAuth, "SignatureDoesNotMatch": causeAuth, "InvalidToken": causeAuth, "InvalidClientTokenId": causeAuth,
	"UnrecognizedClientException": causeAuth, "NotSignedUp": causeAuth, "AccountProblem": causeAuth,
	"RequestTimeTooSkewed": causeSkew,
	"AccessDenied":         causeDenied, "AllAccessDisabled": causeDenied, "MethodNotAllowed": causeDenied, "Forbidden": causeDenied,
	"PermanentRedirect": causeRegion, "TemporaryRedirect": causeRegion, "AuthorizationHeaderMalformed": causeRegion, "InvalidRegion": causeRegion,
	"IllegalLocationConstraintException": causeRegion,
	"BadDigest":                          causeDigest, "XAmzContentSHA256Mismatch": causeDigest, "XAmzContentChecksumMismatch": causeDigest, "InvalidDigest": causeDigest,
	"InvalidRange": causeRange, "EntityTooLarge": causeTooLarge,
	"NotImplemented": causeUnsupported, "InvalidRequest": causeUnsupported, "InvalidArgument": causeUnsupported, "MalformedTrailerError": causeUnsupported,
	"MissingContentLength": causeUnsupported,
	// posix gateways: an object cannot lie below another one
	"ObjectParentIsFile": causeNotFound,
}

// byStatus is for answers whose code says nothing.
func byStatus(status int) cause {
	switch status {
	case http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusPermanentRedirect, http.StatusFound:
		return causeRegion
	case http.StatusUnauthorized:
		return causeAuth
	case http.StatusForbidden:
		return causeDenied
	case http.StatusNotFound:
		return causeNotFound
	case http.StatusConflict:
		return causeConflict
	case http.StatusPreconditionFailed:
		return causePrecondition
	case http.StatusRequestedRangeNotSatisfiable:
		return causeRange
	case http.StatusRequestEntityTooLarge:
		return causeTooLarge
	case http.StatusTooManyRequests:
		return causeBusy
	case http.StatusNotImplemented, http.StatusLengthRequired:
		return causeUnsupported
	case http.StatusRequestTimeout, 499, 520:
		return causeServer
	}
	if status >= 500 {
		return causeServer
	}
	return causeOther
}

// classify says why a request failed. caller is the ctx of the caller, not that of the try.
func classify(caller context.Context, err error) cause {
	if caller.Err() != nil {
		return causeCancelled
	}
	var answer minio.ErrorResponse
	if errors.As(err, &answer) && answer.StatusCode != 0 {
		if c, ok := byCode[answer.Code]; ok {
			return c
		}
		return byStatus(answer.StatusCode)
	}
	var dial *net.OpError
	var name *net.DNSError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &authority), errors.As(err, &host), errors.As(err, &invalid), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return causeTLS
	case errors.As(err, &name), errors.As(err, &dial) && dial.Op == "dial", strings.HasPrefix(err.Error(), "credentials:"):
		return causeUnreachable
	}
	return causeNoAnswer
}

// failure is an error of this package.
type failure struct {
	verb, key string
	cause     cause
	text      string // what the store said, or why it could not
	hint      string
	kinds     []error
}

func (f *failure) Error() string {
	text := "s3: " + f.verb
	if f.key != "" {
		text += " " + f.key
	}
	text += ": " + f.text
	if f.hint != "" {
		text += "; " + f.hint
	}
	return text
}

func (f *failure) Unwrap() []error { return f.kinds }

// Throttled reports whether the store asks for fewer requests.
func (f *failure) Throttled() bool { return f.cause == causeBusy }

// fail makes the error of a request. write: it may have changed the store.
func (s *Store) fail(caller context.Context, verb, key string, write bool, err error) error {
	c := classify(caller, err)
	f := &failure{verb: verb, key: key, cause: c, text: s.words(c, err)}
	f.kinds = kinds(c, write, s.creds.renews)
	if c == causeCancelled {
		f.kinds = append(f.kinds, context.Cause(caller))
	}
	f.hint = s.hint(c, err)
	return f
}

// kinds are the sentinels of a cause.
func kinds(c cause, write, renews bool) []error {
	switch c {
	case causeNotFound, causeRange:
		return []error{ckpt.ErrNotFound}
	case causeNoBucket:
		return []error{ErrNoBucket}
	case causePrecondition:
		return []error{ckpt.ErrExists}
	case causeConflict, causeBusy, causeUnreachable:
		return []error{ckpt.ErrUnavailable}
	case causeServer, causeNoAnswer:
		if write {
			return []error{ckpt.ErrConflict}
		}
		return []error{ckpt.ErrUnavailable}
	case causeCancelled:
		if write {
			return []error{ckpt.ErrConflict}
		}
	case causeExpired:
		if renews { // the next ones may come a moment late
			return []error{ckpt.ErrAuth, ckpt.ErrUnavailable}
		}
		return []error{ckpt.ErrAuth}
	case causeAuth, causeSkew, causeTLS:
		return []error{ckpt.ErrAuth}
	case causeDenied:
		if write {
			return []error{ckpt.ErrAuth, ckpt.ErrReadOnly}
		}
		return []error{ckpt.ErrAuth}
	case causeRegion:
		return []error{ErrRegion}
	case causeDigest:
		return []error{ckpt.ErrCorrupt}
	case causeOther, causeTooLarge, causeUnsupported:
		// nothing that callers branch on
	}
	return nil
}

// What is wrong with a URL, besides credentials.
var (
	// ErrNoBucket: there is no such bucket. Nothing here creates one.
	ErrNoBucket = errors.New("no such bucket")
	// ErrRegion: the bucket is in another region.
	ErrRegion = errors.New("wrong region")
)

// words tells an error without what is secret in it: an answer's code and message, or the innermost reason.
func (s *Store) words(c cause, err error) string {
	var answer minio.ErrorResponse
	switch {
	case c == causeCancelled:
		return "the caller gave up"
	case errors.As(err, &answer):
		return fmt.Sprintf("%s (%s, status %d)", strings.TrimSpace(answer.Message), answer.Code, answer.StatusCode)
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer from " + s.place() + " in time"
	}
	text := err.Error()
	var op *net.OpError
	if errors.As(err, &op) {
		text = op.Error()
	} else if i := strings.LastIndex(text, "\": "); i >= 0 { // url.Error: the method and a signed address come first
		text = text[i+3:]
	}
	return fmt.Sprintf("no answer from %s: %s", s.place(), text)
}

// hint says what to do next.
func (s *Store) hint(c cause, err error) string {
	var answer minio.ErrorResponse
	_ = errors.As(err, &answer) // its zero value says nothing, as wanted
	switch c {
	case causeNoBucket:
		return fmt.Sprintf("create bucket %s yourself, or correct the URL: nothing here makes one", s.cfg.Bucket)
	case causeUnreachable, causeNoAnswer:
		return "check endpoint, network and proxies"
	case causeExpired:
		if s.creds.renews {
			return "renew what is in " + s.creds.from
		}
		return "set new AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN and start again; a file or token file would be read again by itself"
	case causeAuth:
		return "check the credentials, from " + s.creds.from
	case causeSkew:
		return fmt.Sprintf("set this machine's clock: the store's is %s away", (time.Duration(s.wire.skew.Load()) * time.Second).Round(time.Minute))
	case causeDenied:
		return fmt.Sprintf("the credentials (from %s) need s3:ListBucket on %s, and s3:GetObject, s3:PutObject and s3:DeleteObject below %s", s.creds.from, s.cfg.Bucket, s.place())
	case causeRegion:
		if answer.Region != "" && answer.Region != s.region {
			return fmt.Sprintf("the bucket is in region %s, asked was %s: write region=%s into the URL", answer.Region, s.region, answer.Region)
		}
		return fmt.Sprintf("asked was region %s: write region=NAME of the bucket, or its endpoint, into the URL", s.region)
	case causeTLS:
		return "give the certificate of its authority by AWS_CA_BUNDLE=FILE, or write endpoint=http://… when it speaks no TLS"
	case causeTooLarge:
		return "write smaller objects"
	case causeOther, causeNotFound, causePrecondition, causeConflict, causeBusy, causeServer, causeCancelled, causeDigest, causeRange, causeUnsupported:
		// their words say it all, or callers do
	}
	return ""
}

// refused reports whether an answer may mean that the store does not take this way to send a checksum or a condition.
func refused(err error) bool {
	var f *failure
	return errors.As(err, &f) && slices.Contains([]cause{causeUnsupported, causeDigest, causeAuth, causeOther}, f.cause)
}
