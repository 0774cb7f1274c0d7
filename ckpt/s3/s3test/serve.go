// SPDX-License-Identifier: Apache-2.0

package s3test

import (
	"bytes"
	"crypto/md5" //nolint:gosec // it is what ETag and Content-MD5 are
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"phalanx/ckpt"
)

// serve answers one request.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Date", s.now().UTC().Format(http.TimeFormat))
	if r.Method == http.MethodPost {
		s.tokens(w, r)
		return
	}
	sig, err := s.verify(r)
	if err != nil {
		answerError(w, r, err)
		return
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if bucket != Bucket {
		answerError(w, r, refuse(404, "NoSuchBucket", "the bucket %s does not exist", bucket))
		return
	}
	request := Request{Op: r.Method, Key: key, Conditional: r.Header.Get("If-Match")+r.Header.Get("If-None-Match") != ""}
	if key == "" {
		request.Op, request.Key = "LIST", r.URL.Query().Get("prefix")
	}
	fault := s.ask(request)
	time.Sleep(fault.Delay)
	if !fault.After && (fault.Drop || fault.Status != 0) {
		s.failAs(w, r, fault)
		return
	}
	r.Body = &arriving{r.Body, s, fault.Rate}
	answer, err := s.carryOut(request, r, sig, fault)
	switch {
	case fault.Drop || fault.Status != 0:
		s.failAs(w, r, fault)
	case err != nil:
		answerError(w, r, err)
	default:
		answer(w)
	}
}

func (s *Server) ask(request Request) Fault {
	s.asking.Lock()
	defer s.asking.Unlock()
	s.mu.Lock()
	request.Seq = s.seq
	s.seq++
	s.counts[request.Op]++
	hook := s.hook
	s.mu.Unlock()
	if hook == nil {
		return Fault{}
	}
	return hook(request)
}

func (s *Server) failAs(w http.ResponseWriter, r *http.Request, f Fault) {
	if f.Drop {
		panic(http.ErrAbortHandler)
	}
	if f.Status >= 300 && f.Status < 400 {
		w.Header().Set("Location", "http://127.0.0.1:9/elsewhere")
	}
	answerError(w, r, &refusal{f.Status, f.Code, "as the test asked", f.Region})
}

func answerError(w http.ResponseWriter, r *http.Request, err error) {
	var no *refusal
	if !errors.As(err, &no) {
		no = refuse(500, "InternalError", "%v", err)
	}
	if no.region != "" {
		w.Header().Set("X-Amz-Bucket-Region", no.region)
	}
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(no.status)
	if r.Method != http.MethodHead {
		_ = xml.NewEncoder(w).Encode(struct {
			XMLName               xml.Name `xml:"Error"`
			Code, Message, Region string
		}{Code: no.code, Message: no.message, Region: no.region}) // the client has gone
	}
}

// carryOut does what a request asks for and returns what answers it.
func (s *Server) carryOut(q Request, r *http.Request, sig *signature, f Fault) (func(http.ResponseWriter), error) {
	switch q.Op {
	case http.MethodPut:
		return s.put(q.Key, r, sig, f)
	case http.MethodGet, http.MethodHead:
		return s.get(q.Key, r, f)
	case http.MethodDelete:
		if s.Flaws.KeepAll || s.Flaws.ReadOnly {
			return nil, refuse(403, "AccessDenied", "Access Denied.")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.objects, q.Key)
		return func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) }, nil
	case "LIST":
		return s.list(r.URL.Query(), f)
	}
	return nil, refuse(405, "MethodNotAllowed", "%s", r.Method)
}

func (s *Server) put(key string, r *http.Request, sig *signature, f Fault) (func(http.ResponseWriter), error) {
	content, trailer, err := s.body(r, sig)
	if err != nil {
		return nil, err
	}
	if s.Flaws.ReadOnly {
		return nil, refuse(403, "AccessDenied", "Access Denied.")
	}
	if f.Damage && len(content) > 0 {
		content[len(content)/2] ^= 4
	}
	o := object{content: content, crc: ckpt.Checksum(content)}
	sum := md5.Sum(content) //nolint:gosec // as above
	o.etag = hex.EncodeToString(sum[:])
	if err := s.compare(&o, r.Header, trailer); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	present, found := s.objects[key]
	if match, none := r.Header.Get("If-Match"), r.Header.Get("If-None-Match"); match+none != "" && !s.Flaws.IgnoreConditions {
		switch {
		case s.Flaws.RefuseConditions:
			return nil, refuse(501, "NotImplemented", "a header you provided implies functionality that is not implemented")
		case match != "" && !found:
			return nil, refuse(404, "NoSuchKey", "the key does not exist")
		case none == "*" && found, match != "" && strings.Trim(match, `"`) != present.etag:
			return nil, refuse(412, "PreconditionFailed", "at least one of the preconditions you specified did not hold")
		}
	}
	s.objects[key], s.newest = o, key
	return func(w http.ResponseWriter) { w.Header().Set("ETag", `"`+o.etag+`"`) }, nil
}

// compare checks the checksums that came with a body.
func (s *Server) compare(o *object, header http.Header, trailer url.Values) error {
	text := func(name string) string {
		if v := header.Get(name); v != "" {
			return v
		}
		return trailer.Get(name)
	}
	crc64, crc32c := text("x-amz-checksum-crc64nvme"), text("x-amz-checksum-crc32c")
	if s.Flaws.RefuseChecksums && crc64+crc32c != "" {
		return refuse(400, "InvalidRequest", "checksums are not supported")
	}
	if s.Flaws.IgnoreChecksums || s.Flaws.StoreFraming {
		return nil
	}
	encode := base64.StdEncoding.EncodeToString
	castagnoli := crc32.Checksum(o.content, crc32.MakeTable(crc32.Castagnoli))
	sum := md5.Sum(o.content) //nolint:gosec // as above
	switch {
	case crc64 != "" && crc64 != encode(binary.BigEndian.AppendUint64(nil, uint64(o.crc))),
		crc32c != "" && crc32c != encode(binary.BigEndian.AppendUint32(nil, castagnoli)),
		header.Get("Content-Md5") != "" && header.Get("Content-Md5") != encode(sum[:]):
		return refuse(400, "BadDigest", "the checksum you specified did not match the calculated checksum")
	}
	o.hasCRC = crc64 != ""
	return nil
}

func (s *Server) get(key string, r *http.Request, f Fault) (func(http.ResponseWriter), error) {
	s.mu.Lock()
	o, found := s.objects[key]
	s.mu.Unlock()
	if !found {
		return nil, refuse(404, "NoSuchKey", "the key does not exist")
	}
	content := bytes.Clone(o.content)
	first, last, ranged := 0, len(content)-1, false
	if spec, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok && !s.Flaws.IgnoreRanges {
		from, to, _ := strings.Cut(spec, "-")
		first, _ = strconv.Atoi(from)
		if to != "" {
			last, _ = strconv.Atoi(to)
		}
		if ranged = true; first >= len(content) {
			return nil, refuse(416, "InvalidRange", "the requested range is not satisfiable")
		}
		last = min(last, len(content)-1)
	}
	part := content[first : last+1]
	if f.Flip && len(part) > 0 {
		part[len(part)/2] ^= 1
	}
	return func(w http.ResponseWriter) {
		h := w.Header()
		h.Set("ETag", `"`+o.etag+`"`)
		h.Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		h.Set("Content-Length", strconv.Itoa(len(part)))
		if o.hasCRC && r.Header.Get("X-Amz-Checksum-Mode") == "ENABLED" {
			h.Set("X-Amz-Checksum-Crc64nvme", base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, uint64(o.crc))))
			h.Set("X-Amz-Checksum-Type", "FULL_OBJECT")
		}
		if ranged {
			h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, len(content)))
			w.WriteHeader(http.StatusPartialContent)
		}
		if r.Method == http.MethodHead {
			return
		}
		if f.Cut > 0 && f.Cut < len(part) {
			_, _ = w.Write(part[:f.Cut]) // the client has gone
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(part) // the client has gone
	}, nil
}

type listed struct {
	Key          string
	LastModified string
	ETag         string
	Size         int
}

func (s *Server) list(q url.Values, f Fault) (func(http.ResponseWriter), error) {
	limit := 1000
	if n, err := strconv.Atoi(q.Get("max-keys")); err == nil {
		limit = min(limit, n)
	}
	after := max(q.Get("start-after"), q.Get("continuation-token"))
	result := struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		Name                  string
		IsTruncated           bool
		NextContinuationToken string
		Contents              []listed
	}{Name: Bucket}
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for key := range s.objects {
		if strings.HasPrefix(key, q.Get("prefix")) && key > after && (!f.Stale || key != s.newest) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	if result.IsTruncated = len(keys) > limit; result.IsTruncated {
		keys = keys[:limit]
		result.NextContinuationToken = keys[limit-1]
	}
	for _, key := range keys {
		o := s.objects[key]
		result.Contents = append(result.Contents, listed{key, time.Now().UTC().Format(time.RFC3339), `"` + o.etag + `"`, len(o.content)})
	}
	return func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/xml")
		_ = xml.NewEncoder(w).Encode(result) // the client has gone
	}, nil
}

// tokens is the token service: it gives out a new key for the token "good".
func (s *Server) tokens(w http.ResponseWriter, r *http.Request) {
	fault := s.ask(Request{Op: "STS"})
	if fault.Status != 0 {
		s.failAs(w, r, fault)
		return
	}
	if r.FormValue("Action") != "AssumeRoleWithWebIdentity" || r.FormValue("WebIdentityToken") != "good" {
		answerError(w, r, refuse(400, "InvalidIdentityToken", "the token is not known"))
		return
	}
	id := "ASIA" + strings.ToUpper(randomText()[:12])
	token := randomText()
	secret := s.AddKey(id, token)
	s.mu.Lock()
	ends := time.Now().Add(s.issued).UTC().Format(time.RFC3339Nano)
	s.mu.Unlock()
	fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials>`+
		`<AccessKeyId>%s</AccessKeyId><SecretAccessKey>%s</SecretAccessKey><SessionToken>%s</SessionToken><Expiration>%s</Expiration>`+
		`</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, id, secret, token, ends)
}
