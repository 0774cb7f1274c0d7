// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"phalanx/ckpt"
	"phalanx/internal/nearest"
)

// Config is what a URL says of a store.
type Config struct {
	Bucket string
	Prefix string // of all keys, without slashes at its ends; may be empty
	// Endpoint is http(s)://HOST[:PORT]; "" is that of AWS for the region.
	Endpoint string
	Region   string
	Checksum Checksum
	// PathStyle: the bucket is the first part of the path and not of the host's name.
	PathStyle Choice
	Profile   string // of the credentials file; "" is AWS_PROFILE, or "default"
	IAM       bool   // credentials may be asked of a metadata address
	// Concurrency is the most requests at a time.
	Concurrency int
	// BytesPerSecond bounds bodies; 0 is no bound.
	BytesPerSecond int64
}

// Choice is a setting that may be left to be found out.
type Choice int

// The choices.
const (
	Auto Choice = iota
	Yes
	No
)

// Checksum is how the store is told the checksum of an object.
type Checksum string

// The ways, best first. ChecksumAuto takes the first that works and is verified.
const (
	ChecksumAuto             Checksum = "auto"
	ChecksumHeader           Checksum = "header"            // CRC64NVME, known before the first byte, as a signed header
	ChecksumHeaderCRC32C     Checksum = "header-crc32c"     // the same with CRC32C
	ChecksumTrailingUnsigned Checksum = "trailing-unsigned" // CRC64NVME after the body, which is not signed
	ChecksumTrailingSigned   Checksum = "trailing-signed"   // CRC64NVME after the body, whose pieces are signed
	ChecksumSHA256           Checksum = "sha256"            // the signature covers the SHA-256 of the body
	ChecksumMD5              Checksum = "md5"               // Content-MD5
	ChecksumNone             Checksum = "none"
)

var checksums = []Checksum{ChecksumHeader, ChecksumHeaderCRC32C, ChecksumTrailingUnsigned, ChecksumTrailingSigned, ChecksumSHA256, ChecksumMD5, ChecksumNone}

const (
	defaultConcurrency = 16
	mostConcurrency    = 256
	mostPrefix         = 200
)

// parameters set a field from the text of a parameter of the URL.
var parameters = map[string]func(c *Config, text string) error{
	"endpoint": func(c *Config, text string) error { return setEndpoint(c, text) },
	"region":   func(c *Config, text string) error { c.Region = text; return nil },
	"checksum": func(c *Config, text string) error {
		if c.Checksum = Checksum(text); c.Checksum != ChecksumAuto && !slices.Contains(checksums, c.Checksum) {
			return fmt.Errorf("want auto or one of %v", checksums)
		}
		return nil
	},
	"path-style": func(c *Config, text string) error {
		yes, err := parseBool(text)
		if c.PathStyle = No; yes {
			c.PathStyle = Yes
		}
		return err
	},
	"profile": func(c *Config, text string) error { c.Profile = text; return nil },
	"iam":     func(c *Config, text string) (err error) { c.IAM, err = parseBool(text); return err },
	"concurrency": func(c *Config, text string) (err error) {
		if c.Concurrency, err = strconv.Atoi(text); err != nil || c.Concurrency < 1 || c.Concurrency > mostConcurrency {
			return fmt.Errorf("want 1 to %d requests at a time", mostConcurrency)
		}
		return nil
	},
	"bytes-per-second": func(c *Config, text string) (err error) {
		if c.BytesPerSecond, err = strconv.ParseInt(text, 10, 64); err != nil || c.BytesPerSecond < 1 {
			return errors.New("want a number of bytes")
		}
		return nil
	},
}

func parseBool(text string) (bool, error) {
	switch text {
	case "1", "true":
		return true, nil
	case "0", "false":
		return false, nil
	}
	return false, errors.New("want 1 or 0")
}

func setEndpoint(c *Config, text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("want https://HOST[:PORT] or http://HOST[:PORT]")
	}
	c.Endpoint = u.Scheme + "://" + u.Host
	return nil
}

// bucketName is what S3 allows, without the rules that only AWS has.
var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

// ParseURL reads s3://BUCKET/PREFIX?PARAMETER=VALUE&…. Its errors never show values, which may be secrets in a wrong place.
func ParseURL(text string) (Config, error) {
	c := Config{Checksum: ChecksumAuto, Concurrency: defaultConcurrency}
	rest, ok := strings.CutPrefix(text, "s3://")
	if !ok {
		return c, errors.New("s3: want a URL s3://BUCKET/PREFIX?endpoint=https://HOST")
	}
	place, query, _ := strings.Cut(rest, "?")
	if strings.Contains(place, "@") {
		return c, errors.New("s3: a secret does not belong into a URL; write s3://BUCKET/PREFIX and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	}
	bucket, prefix, _ := strings.Cut(place, "/")
	if c.Bucket = bucket; !bucketName.MatchString(bucket) || strings.Contains(bucket, "..") {
		return c, fmt.Errorf("s3: bucket %.80q: want 3 to 63 of a-z, 0-9, dots and dashes, as in s3://BUCKET/PREFIX", bucket)
	}
	if c.Prefix = strings.Trim(prefix, "/"); c.Prefix != "" {
		if err := ckpt.ValidKey(c.Prefix); err != nil || len(c.Prefix) > mostPrefix {
			return c, fmt.Errorf("s3: prefix %.80q: want at most %d of letters, digits, dots, dashes, underscores and single slashes", c.Prefix, mostPrefix)
		}
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return c, errors.New("s3: the parameters after ? cannot be read; write NAME=VALUE&NAME=VALUE, with %26 for & in a value")
	}
	names := known()
	for _, name := range slices.Sorted(mapKeys(values)) {
		set, ok := parameters[name]
		if !ok {
			return c, fmt.Errorf("s3: unknown parameter %.40q: %s", name, nearest.Suggest(name, names))
		}
		if len(values[name]) != 1 {
			return c, fmt.Errorf("s3: parameter %s is given %d times", name, len(values[name]))
		}
		if err := set(&c, values[name][0]); err != nil {
			return c, fmt.Errorf("s3: parameter %s: %w", name, err)
		}
	}
	return c, nil
}

func known() []string { return slices.Sorted(mapKeys(parameters)) }

func mapKeys[V any](m map[string]V) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// String is the URL that ParseURL reads as the same Config.
func (c Config) String() string {
	q := url.Values{}
	set := func(name, text string, unless bool) {
		if !unless {
			q.Set(name, text)
		}
	}
	set("endpoint", c.Endpoint, c.Endpoint == "")
	set("region", c.Region, c.Region == "")
	set("checksum", string(c.Checksum), cmp.Or(c.Checksum, ChecksumAuto) == ChecksumAuto)
	set("path-style", map[Choice]string{Yes: "1", No: "0"}[c.PathStyle], c.PathStyle == Auto)
	set("profile", c.Profile, c.Profile == "")
	set("iam", "1", !c.IAM)
	set("concurrency", strconv.Itoa(c.Concurrency), c.Concurrency == defaultConcurrency || c.Concurrency == 0)
	set("bytes-per-second", strconv.FormatInt(c.BytesPerSecond, 10), c.BytesPerSecond == 0)
	text := "s3://" + c.Bucket
	if c.Prefix != "" {
		text += "/" + c.Prefix
	}
	if len(q) > 0 {
		text += "?" + q.Encode()
	}
	return text
}
