// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpproxy"

	"phalanx/ckpt"
)

const (
	dialTimeout   = 10 * time.Second
	headerTimeout = 60 * time.Second // a store that is busy with a condition may think for long
	// tryBase and tryRate make the deadline of one try: so long, and so much more for the size of its body.
	tryBase = 60 * time.Second
	tryRate = 1 << 20 // bytes a second
)

// tryTimeout is the longest that one request may take.
func tryTimeout(bytes int64) time.Duration {
	return tryBase + time.Duration(max(bytes, 0))*time.Second/tryRate
}

// wire sends requests. It never follows a redirect, which would sign a request for whoever the answer names, and knows how
// far the store's clock is from ours.
type wire struct {
	transport http.RoundTripper
	skew      atomic.Int64 // of the last answer: the store's clock minus ours, in seconds
}

// newWire obeys HTTP_PROXY, HTTPS_PROXY, NO_PROXY and AWS_CA_BUNDLE.
func newWire(c Config, env Env) (*wire, error) {
	proxies := httpproxy.Config{
		HTTPProxy: either(env, "HTTP_PROXY", "http_proxy"), HTTPSProxy: either(env, "HTTPS_PROXY", "https_proxy"), NoProxy: either(env, "NO_PROXY", "no_proxy"),
	}
	proxy := proxies.ProxyFunc()
	security := &tls.Config{MinVersion: tls.VersionTLS12}
	if bundle := env("AWS_CA_BUNDLE"); bundle != "" {
		pem, err := os.ReadFile(bundle)
		if err != nil {
			return nil, fmt.Errorf("s3: AWS_CA_BUNDLE: %w: %w", err, ckpt.ErrAuth)
		}
		if security.RootCAs, err = x509.SystemCertPool(); err != nil {
			security.RootCAs = x509.NewCertPool()
		}
		if !security.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("s3: AWS_CA_BUNDLE: %s has no certificate in PEM form: %w", bundle, ckpt.ErrAuth)
		}
	}
	return &wire{transport: &http.Transport{
		Proxy:                 func(r *http.Request) (*url.URL, error) { return proxy(r.URL) },
		DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:       security,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: headerTimeout,
		MaxIdleConnsPerHost:   c.Concurrency,
		IdleConnTimeout:       60 * time.Second,
		DisableCompression:    true, // ranges are of the bytes as stored
	}}, nil
}

func either(env Env, names ...string) string {
	for _, name := range names {
		if text := env(name); text != "" {
			return text
		}
	}
	return ""
}

// RoundTrip implements http.RoundTripper.
func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := w.transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		w.skew.Store(int64(time.Until(date) / time.Second))
	}
	if answer.StatusCode >= 300 && answer.StatusCode < 400 {
		answer.Header.Del("Location")
	}
	return answer, nil
}
