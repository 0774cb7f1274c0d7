// SPDX-License-Identifier: Apache-2.0

package s3test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Gateway is a real S3 server, versitygw, on a directory. It can be killed and started again at the same address.
type Gateway struct {
	Dir     string // holds a directory for each bucket
	Address string // 127.0.0.1:PORT
	CAFile  string // "" without TLS
	secret  string
	program string
	certs   string // the directory of cert.pem and key.pem
	process *exec.Cmd
	log     *lockedBuffer
}

const gatewayKey = "gateway-key"

// StartGateway starts a gateway with the bucket Bucket, over TLS with an authority of its own if secure. It fails the test
// when the program is not there: `scripts/versitygw.sh` builds it.
func StartGateway(t testing.TB, secure bool) *Gateway {
	t.Helper()
	program, err := programOf("versitygw.sh")
	if err != nil {
		t.Fatal(err)
	}
	g := &Gateway{Dir: t.TempDir(), secret: randomText(), program: program}
	if err := os.Mkdir(filepath.Join(g.Dir, Bucket), 0o755); err != nil {
		t.Fatal(err)
	}
	if secure {
		g.certs = t.TempDir()
		if g.CAFile, err = writeCertificates(g.certs); err != nil {
			t.Fatal(err)
		}
	}
	ports, err := freePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	g.Address = net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0]))
	t.Cleanup(g.Kill)
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return g
}

// programOf asks a script for the program that it builds, and has it built when nobody has.
func programOf(name string) (string, error) {
	_, file, _, _ := runtime.Caller(0)
	script := filepath.Join(filepath.Dir(file), "..", "..", "..", "scripts", name)
	var problem bytes.Buffer
	c := exec.Command(script)
	c.Stderr = &problem
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s; it needs the Go proxy, and minutes", script, err, problem.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// Start starts the gateway, again after Kill, and waits until it listens.
func (g *Gateway) Start(ctx context.Context) error {
	args := []string{"-q", "--port", g.Address}
	if g.certs != "" {
		args = append(args, "--cert", filepath.Join(g.certs, "cert.pem"), "--key", filepath.Join(g.certs, "key.pem"))
	}
	g.log = &lockedBuffer{}
	g.process = exec.Command(g.program, append(args, "posix", g.Dir)...)
	g.process.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+gatewayKey, "ROOT_SECRET_KEY="+g.secret, "VGW_REGION="+Region)
	g.process.Stdout, g.process.Stderr = g.log, g.log
	g.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := g.process.Start(); err != nil {
		return fmt.Errorf("start versitygw: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", g.Address)
		if err == nil {
			return c.Close()
		}
		select {
		case <-ctx.Done():
			g.Kill()
			return fmt.Errorf("versitygw does not listen at %s: %w; it said: %s", g.Address, err, g.log)
		case <-time.After(10 * time.Millisecond): // until it listens
		}
	}
}

// Kill ends the gateway as a crash would.
func (g *Gateway) Kill() {
	if g.process == nil {
		return
	}
	_ = g.process.Process.Kill() // it may have ended
	_ = g.process.Wait()         // killed
	g.process = nil
}

// StoreURL is the gateway's bucket as a URL of a store; more are parameters.
func (g *Gateway) StoreURL(prefix string, more ...string) string {
	scheme := "http://"
	if g.certs != "" {
		scheme = "https://"
	}
	parameters := append([]string{"endpoint=" + scheme + g.Address, "region=" + Region}, more...)
	return "s3://" + Bucket + "/" + prefix + "?" + strings.Join(parameters, "&")
}

// Env is an environment in which the gateway can be used.
func (g *Gateway) Env() map[string]string {
	env := map[string]string{"AWS_ACCESS_KEY_ID": gatewayKey, "AWS_SECRET_ACCESS_KEY": g.secret}
	if g.CAFile != "" {
		env["AWS_CA_BUNDLE"] = g.CAFile
	}
	return env
}

// writeCertificates makes an authority and a certificate of it for 127.0.0.1.
func writeCertificates(dir string) (caFile string, err error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return "", err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "127.0.0.1"}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	if err != nil {
		return "", err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", err
	}
	for name, block := range map[string]*pem.Block{
		"ca.pem": {Type: "CERTIFICATE", Bytes: caDER}, "cert.pem": {Type: "CERTIFICATE", Bytes: leafDER}, "key.pem": {Type: "PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, "ca.pem"), nil
}

// lockedBuffer takes the output of a process that lives.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
