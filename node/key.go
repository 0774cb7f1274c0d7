// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"strings"
	"time"

	"phalanx"
)

// JobKey is the one secret of a job. From it come the gossip key and the job's certificate authority, so that whoever holds
// it is a member and nobody else is heard.
type JobKey [32]byte

// ErrKey is returned for a key that cannot be read.
var ErrKey = errors.New("job key must be 64 hex digits; make one with: phalanx key new")

// NewJobKey draws a key.
func NewJobKey() JobKey {
	var k JobKey
	rand.Read(k[:]) // never fails
	return k
}

// ParseJobKey reads the text form.
func ParseJobKey(s string) (JobKey, error) {
	b, err := hex.DecodeString(strings.TrimSpace(s))
	if err != nil || len(b) != 32 {
		return JobKey{}, ErrKey
	}
	return JobKey(b), nil
}

// ReadJobKey reads a key file. Others must not be able to read it.
func ReadJobKey(path string) (JobKey, error) {
	info, err := os.Stat(path)
	if err != nil {
		return JobKey{}, fmt.Errorf("read key: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return JobKey{}, fmt.Errorf("read key: %s can be read by others; run: chmod 600 %s", path, path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return JobKey{}, fmt.Errorf("read key: %w", err)
	}
	k, err := ParseJobKey(string(b))
	if err != nil {
		return JobKey{}, fmt.Errorf("read key %s: %w", path, err)
	}
	return k, nil
}

func (k JobKey) String() string { return hex.EncodeToString(k[:]) }

// IsZero reports whether there is no key.
func (k JobKey) IsZero() bool { return k == JobKey{} }

func (k JobKey) derive(purpose string) []byte {
	b, err := hkdf.Key(sha256.New, k[:], nil, "phalanx "+purpose, 32)
	if err != nil {
		panic(err) // a length of 32 is always served
	}
	return b
}

// Gossip is the key of the gossip between the job's hosts.
func (k JobKey) Gossip() []byte { return k.derive("gossip") }

// Identity is a daemon's TLS identity within the job.
type Identity struct {
	server, client *tls.Config
}

// NewIdentity makes a daemon's certificate, signed by the job's authority, which everyone derives from the key alike.
// Clocks of hosts may differ by days, so validity is wide; the key's life bounds it.
func NewIdentity(k JobKey, job string, who phalanx.MemberID) (*Identity, error) {
	caKey := ed25519.NewKeyFromSeed(k.derive("authority"))
	from, to := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2120, 1, 1, 0, 0, 0, 0, time.UTC)
	caTemplate := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "phalanx job authority"}, NotBefore: from, NotAfter: to,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, caTemplate, caTemplate, caKey.Public(), caKey)
	if err != nil {
		return nil, fmt.Errorf("make job authority: %w", err)
	}
	ca, err := x509.ParseCertificate(caDER)
	if err != nil {
		return nil, fmt.Errorf("make job authority: %w", err)
	}
	_, leafKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make certificate: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make certificate: %w", err)
	}
	leaf := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: string(who)}, NotBefore: from, NotAfter: to,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		URIs: []*url.URL{{Scheme: "phalanx", Host: job, Path: "/" + string(who)}}, DNSNames: []string{serverName},
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, leafKey.Public(), caKey)
	if err != nil {
		return nil, fmt.Errorf("make certificate: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	cert := tls.Certificate{Certificate: [][]byte{leafDER}, PrivateKey: leafKey}
	base := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, RootCAs: pool, ClientCAs: pool,
		ClientAuth: tls.RequireAndVerifyClientCert, ServerName: serverName,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 || len(s.PeerCertificates[0].URIs) != 1 || s.PeerCertificates[0].URIs[0].Host != job {
				return fmt.Errorf("the peer is not of job %q: %w", job, errOtherJob)
			}
			return nil
		},
	}
	server := base.Clone()
	server.NextProtos = []string{ProtoRaft, ProtoPeer, ProtoData, ProtoStream, ProtoAPI, ProtoGossip, ProtoStore, ProtoTryPeer, ProtoTryData}
	return &Identity{server: server, client: base}, nil
}

const serverName = "phalanx.job"

// peerOf is the member that a verified connection belongs to.
func peerOf(s tls.ConnectionState) phalanx.MemberID {
	if len(s.PeerCertificates) == 0 || len(s.PeerCertificates[0].URIs) == 0 {
		return ""
	}
	return phalanx.MemberID(strings.TrimPrefix(s.PeerCertificates[0].URIs[0].Path, "/"))
}

// jobTag tells jobs of one name with different keys apart, without giving the key away.
func (k JobKey) jobTag(job string) string { return hex.EncodeToString(k.derive("job " + job)[:4]) }
