// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"phalanx/ckpt"
)

// Env looks up a variable of the environment; os.Getenv is one.
type Env func(name string) string

// source is where credentials come from.
type source struct {
	*credentials.Credentials
	// from names it, for messages.
	from string
	// renews: asking again may give others.
	renews bool
}

// findCredentials chooses where credentials come from: keys in the environment, a token file, the credentials file, and a
// metadata address only if that is asked for.
func findCredentials(c Config, env Env, client *http.Client) (source, error) {
	id, secret := env("AWS_ACCESS_KEY_ID"), env("AWS_SECRET_ACCESS_KEY")
	switch token := env("AWS_WEB_IDENTITY_TOKEN_FILE"); {
	case c.Profile == "" && id != "" && secret != "":
		return source{credentials.NewStaticV4(id, secret, env("AWS_SESSION_TOKEN")), "AWS_ACCESS_KEY_ID", false}, nil
	case c.Profile == "" && (id != "" || secret != ""):
		return source{}, fmt.Errorf("s3: only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set; set both: %w", ckpt.ErrAuth)
	case c.Profile == "" && token != "":
		return source{credentials.New(&ahead{inner: webIdentity(c, env, token, client)}), "AWS_WEB_IDENTITY_TOKEN_FILE " + token, true}, nil
	case c.IAM:
		return source{credentials.New(&ahead{inner: &credentials.IAM{Client: client}}), "the metadata address (iam=1)", true}, nil
	}
	path := env("AWS_SHARED_CREDENTIALS_FILE")
	if path == "" {
		path = filepath.Join(env("HOME"), ".aws", "credentials")
	}
	profile := cmp.Or(c.Profile, env("AWS_PROFILE"), "default")
	if _, err := os.Stat(path); err != nil {
		return source{}, fmt.Errorf("s3: no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN, "+
			"or write %s; add iam=1 to the URL to ask the machine's metadata address: %w", path, ckpt.ErrAuth)
	}
	file := &watched{path: path, Provider: &credentials.FileAWSCredentials{Filename: path, Profile: profile}}
	return source{credentials.New(&ahead{inner: file}), "profile " + profile + " of " + path, true}, nil
}

// webIdentity trades the token in a file for credentials.
func webIdentity(c Config, env Env, path string, client *http.Client) credentials.Provider {
	region := regionOf(c, env)
	endpoint := "https://sts." + region + ".amazonaws.com"
	if strings.HasPrefix(region, "cn-") {
		endpoint += ".cn"
	}
	return &credentials.STSWebIdentity{
		Client: client, STSEndpoint: cmp.Or(env("AWS_ENDPOINT_URL_STS"), endpoint), RoleARN: env("AWS_ROLE_ARN"),
		GetWebIDTokenExpiry: func() (*credentials.WebIdentityToken, error) {
			token, err := os.ReadFile(path) // every time: the file is replaced before its token ends
			if err != nil {
				return nil, fmt.Errorf("AWS_WEB_IDENTITY_TOKEN_FILE: %w", err)
			}
			return &credentials.WebIdentityToken{Token: strings.TrimSpace(string(token))}, nil
		},
	}
}

func regionOf(c Config, env Env) string {
	return cmp.Or(c.Region, env("AWS_REGION"), env("AWS_DEFAULT_REGION"), "us-east-1")
}

// watched reads a file again when it has changed, as tools do that renew session tokens in it.
type watched struct {
	credentials.Provider
	path    string
	read    time.Time // modification time of what was read
	checked time.Time
}

const watchEvery = 5 * time.Second

func (w *watched) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	if st, err := os.Stat(w.path); err == nil {
		w.read = st.ModTime()
	}
	return w.Provider.RetrieveWithCredContext(cc)
}

func (w *watched) IsExpired() bool {
	if w.Provider.IsExpired() {
		return true
	}
	if now := time.Now(); now.Sub(w.checked) >= watchEvery {
		w.checked = now
		st, err := os.Stat(w.path)
		return err == nil && !st.ModTime().Equal(w.read)
	}
	return false
}

// ahead renews credentials before they end: a large body that was signed just in time would be refused half-way. While
// renewing fails, those that have not ended yet are used.
type ahead struct {
	inner credentials.Provider

	mu    sync.Mutex // guards the fields below
	value credentials.Value
	renew time.Time // when to renew; zero when they do not end
	retry time.Time // not before, after a failure
}

const renewAhead = 5 * time.Minute

func (a *ahead) Retrieve() (credentials.Value, error) { return a.RetrieveWithCredContext(nil) }

func (a *ahead) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	value, err := a.inner.RetrieveWithCredContext(cc)
	now := time.Now()
	if err != nil {
		if a.value.Expiration.After(now) {
			a.retry = now.Add(10 * time.Second)
			return a.value, nil
		}
		return credentials.Value{}, fmt.Errorf("credentials: %w", err)
	}
	if value.AccessKeyID == "" || value.SecretAccessKey == "" {
		return credentials.Value{}, errors.New("credentials: there are none")
	}
	a.value, a.renew, a.retry = value, time.Time{}, time.Time{}
	if !value.Expiration.IsZero() {
		a.renew = value.Expiration.Add(-min(renewAhead, value.Expiration.Sub(now)/5))
	}
	return value, nil
}

func (a *ahead) IsExpired() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if !a.retry.IsZero() && now.Before(a.retry) {
		return false
	}
	return a.inner.IsExpired() || !a.renew.IsZero() && now.After(a.renew)
}
