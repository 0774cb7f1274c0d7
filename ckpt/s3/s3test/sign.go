// SPDX-License-Identifier: Apache-2.0

package s3test

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// signature is what a request claims, and the key that makes and checks it (AWS Signature Version 4).
type signature struct {
	id, scope, date, seed string
	region                string
	key                   []byte
}

const longestSkew = 15 * time.Minute

// refusal is an answer that ends a request.
type refusal struct {
	status                int
	code, message, region string
}

func (r *refusal) Error() string { return r.code + ": " + r.message }

func refuse(status int, code, format string, args ...any) *refusal {
	return &refusal{status: status, code: code, message: fmt.Sprintf(format, args...)}
}

// verify checks the signature of a request's headers.
func (s *Server) verify(r *http.Request) (*signature, error) {
	fields := map[string]string{}
	rest, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	if !ok {
		return nil, refuse(403, "AccessDenied", "the request is not signed")
	}
	for field := range strings.SplitSeq(rest, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		fields[name] = value
	}
	part := strings.Split(fields["Credential"], "/")
	if len(part) != 5 || part[3] != "s3" || part[4] != "aws4_request" {
		return nil, refuse(400, "AuthorizationHeaderMalformed", "credential %q", fields["Credential"])
	}
	sig := &signature{id: part[0], region: part[2], scope: strings.Join(part[1:], "/"), date: r.Header.Get("X-Amz-Date"), seed: fields["Signature"]}
	s.mu.Lock()
	known, ok := s.keys[sig.id]
	s.mu.Unlock()
	at, err := time.Parse("20060102T150405Z", sig.date)
	switch {
	case !ok:
		return nil, refuse(403, "InvalidAccessKeyId", "the access key %s does not exist", sig.id)
	case err != nil:
		return nil, refuse(403, "AccessDenied", "date %q", sig.date)
	case s.now().Sub(at).Abs() > longestSkew:
		return nil, refuse(403, "RequestTimeTooSkewed", "the difference between the request time and the current time is too large")
	case known.expired:
		return nil, refuse(400, "ExpiredToken", "the provided token has expired")
	case r.Header.Get("X-Amz-Security-Token") != known.token:
		return nil, refuse(403, "InvalidToken", "the token is another")
	case sig.region != Region:
		return nil, &refusal{400, "AuthorizationHeaderMalformed", "the region " + sig.region + " is wrong; expecting " + Region, Region}
	}
	sig.key = []byte("AWS4" + known.secret)
	for _, text := range []string{part[1], part[2], part[3], part[4]} {
		sig.key = mac(sig.key, text)
	}
	signed := strings.Split(fields["SignedHeaders"], ";")
	var headers strings.Builder
	for _, name := range signed {
		value := strings.Join(r.Header.Values(name), ",")
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = strconv.FormatInt(r.ContentLength, 10)
		}
		fmt.Fprintf(&headers, "%s:%s\n", name, strings.Join(strings.Fields(value), " "))
	}
	for _, name := range []string{"host", "x-amz-date", "x-amz-content-sha256"} {
		if !slices.Contains(signed, name) {
			return nil, refuse(403, "AccessDenied", "header %s is not signed", name)
		}
	}
	for name := range r.Header {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-amz-") && !slices.Contains(signed, name) {
			return nil, refuse(403, "AccessDenied", "header %s is not signed", name)
		}
	}
	canonical := strings.Join([]string{r.Method, r.URL.EscapedPath(), strings.ReplaceAll(r.URL.Query().Encode(), "+", "%20"),
		headers.String(), fields["SignedHeaders"], r.Header.Get("X-Amz-Content-Sha256")}, "\n")
	if want := sig.sign("AWS4-HMAC-SHA256", hash([]byte(canonical))); want != sig.seed {
		return nil, refuse(403, "SignatureDoesNotMatch", "the signature does not match")
	}
	return sig, nil
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = io.WriteString(h, text) // never fails
	return h.Sum(nil)
}

func hash(p []byte) string {
	sum := sha256.Sum256(p)
	return hex.EncodeToString(sum[:])
}

func (sig *signature) sign(kind string, parts ...string) string {
	return hex.EncodeToString(mac(sig.key, strings.Join(append([]string{kind, sig.date, sig.scope}, parts...), "\n")))
}

// body reads the content of a request, out of its frames, and its trailers. What is signed of it is checked.
func (s *Server) body(r *http.Request, sig *signature) (content []byte, trailer url.Values, err error) {
	raw, err := io.ReadAll(r.Body)
	if err != nil || int64(len(raw)) != r.ContentLength {
		return nil, nil, refuse(400, "IncompleteBody", "the body ends after %d of %d bytes", len(raw), r.ContentLength)
	}
	way := r.Header.Get("X-Amz-Content-Sha256")
	switch {
	case way == "UNSIGNED-PAYLOAD":
		return raw, nil, nil
	case !strings.HasPrefix(way, "STREAMING-"):
		if hash(raw) != way {
			return nil, nil, refuse(400, "XAmzContentSHA256Mismatch", "the body has another SHA-256")
		}
		return raw, nil, nil
	case s.Flaws.StoreFraming:
		return raw, nil, nil
	case s.Flaws.RefuseChecksums:
		return nil, nil, refuse(501, "NotImplemented", "%s", way)
	}
	content, trailer, err = unframe(raw, sig, strings.HasPrefix(way, "STREAMING-AWS4-"))
	var r2 *refusal
	if err != nil && !errors.As(err, &r2) {
		err = refuse(400, "InvalidRequest", "%v", err)
	}
	if err == nil && strconv.Itoa(len(content)) != r.Header.Get("X-Amz-Decoded-Content-Length") {
		err = refuse(400, "IncompleteBody", "%d bytes came", len(content))
	}
	return content, trailer, err
}

// unframe takes a body of aws-chunked frames apart.
func unframe(raw []byte, sig *signature, signed bool) (content []byte, trailer url.Values, err error) {
	in, before := bufio.NewReader(bytes.NewReader(raw)), sig.seed
	empty := hash(nil)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, nil, fmt.Errorf("frame: %w", err)
		}
		size, extension, _ := strings.Cut(strings.TrimSpace(line), ";")
		n, err := strconv.ParseInt(size, 16, 32)
		if err != nil || n < 0 || n > int64(len(raw)) {
			return nil, nil, fmt.Errorf("frame of %q bytes", size)
		}
		piece := make([]byte, n)
		if _, err := io.ReadFull(in, piece); err != nil {
			return nil, nil, fmt.Errorf("frame: %w", err)
		}
		if signed {
			before = checkFrame(sig, before, empty, piece, extension)
			if before == "" {
				return nil, nil, refuse(403, "SignatureDoesNotMatch", "a piece of the body is not signed rightly")
			}
		}
		if n == 0 {
			break
		}
		if end := make([]byte, 2); readEnd(in, end) != nil {
			return nil, nil, errors.New("a frame has no end")
		}
		content = append(content, piece...)
	}
	trailer = url.Values{}
	for {
		line, err := in.ReadString('\n')
		name, value, found := strings.Cut(strings.TrimSpace(line), ":")
		if found {
			trailer.Set(strings.ToLower(name), strings.TrimSpace(value))
		}
		if err != nil {
			return content, trailer, nil
		}
	}
}

func readEnd(in io.Reader, end []byte) error {
	if _, err := io.ReadFull(in, end); err != nil || string(end) != "\r\n" {
		return errors.New("no end")
	}
	return nil
}

// checkFrame returns the signature of a frame, "" when it is not what it must be.
func checkFrame(sig *signature, before, empty string, piece []byte, extension string) string {
	given, ok := strings.CutPrefix(extension, "chunk-signature=")
	if want := sig.sign("AWS4-HMAC-SHA256-PAYLOAD", before, empty, hash(piece)); !ok || given != want {
		return ""
	}
	return given
}
