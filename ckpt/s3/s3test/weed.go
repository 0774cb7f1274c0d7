// SPDX-License-Identifier: Apache-2.0

package s3test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Weed is SeaweedFS, a second real S3 server: slower, and written by others than Gateway, whose opinion it is asked for.
type Weed struct {
	Dir     string
	Address string // 127.0.0.1:PORT
	secret  string
	program string
	args    []string
	process *exec.Cmd
	log     *lockedBuffer
}

const (
	// weedStart is how long SeaweedFS may take to answer, weedWarm how long after that its locks still move between its parts: what
	// writes under a condition until then waits, for minutes at times.
	weedStart = time.Minute
	weedWarm  = 12 * time.Second
)

// StartWeed starts SeaweedFS with the bucket Bucket, and waits until it serves conditions. It fails the test when the program is not
// there and cannot be built: `scripts/seaweedfs.sh` does that.
func StartWeed(t testing.TB) *Weed {
	t.Helper()
	program, err := programOf("seaweedfs.sh")
	if err != nil {
		t.Fatal(err)
	}
	w := &Weed{Dir: t.TempDir(), secret: randomText(), program: program}
	ids, err := json.Marshal(map[string]any{"identities": []any{map[string]any{
		"name": "test", "actions": []string{"Admin", "Read", "Write", "List", "Tagging"},
		"credentials": []any{map[string]string{"accessKey": gatewayKey, "secretKey": w.secret}},
	}}})
	if err == nil {
		err = os.WriteFile(filepath.Join(w.Dir, "ids.json"), ids, 0o600)
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(w.Dir, "data"), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	ports, err := freePorts(8)
	if err != nil {
		t.Fatal(err)
	}
	w.Address = net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0]))
	w.args = []string{"server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-dir=" + filepath.Join(w.Dir, "data"), "-master.volumeSizeLimitMB=512", "-volume.max=20",
		"-filer", "-s3", "-s3.config=" + filepath.Join(w.Dir, "ids.json"), "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.localSocket=" + filepath.Join(w.Dir, "s3.sock")}
	for i, name := range []string{"s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"} {
		w.args = append(w.args, fmt.Sprintf("-%s=%d", name, ports[i]))
	}
	t.Cleanup(w.Kill)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// freePorts finds ports of 127.0.0.1 that nobody listens at.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // when all are found, so that none is found twice
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// Start starts the server, again after Kill, and waits until it has the bucket and has warmed up.
func (w *Weed) Start(ctx context.Context) error {
	w.log = &lockedBuffer{}
	w.process = exec.Command(w.program, w.args...)
	w.process.Dir = w.Dir
	w.process.Env = append(os.Environ(), "HOME="+w.Dir) // it looks for settings there
	w.process.Stdout, w.process.Stderr = w.log, w.log
	w.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := w.process.Start(); err != nil {
		return fmt.Errorf("start weed: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, weedStart+weedWarm)
	defer cancel()
	if err := w.makeBucket(ctx); err != nil {
		w.Kill()
		return fmt.Errorf("weed does not serve at %s: %w; it said: %s", w.Address, err, lastLines(w.log.String(), 20))
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(weedWarm): // nothing tells when its locks have settled
		return nil
	}
}

// makeBucket tries until the server answers.
func (w *Weed) makeBucket(ctx context.Context) error {
	c, err := minio.New(w.Address, &minio.Options{Creds: credentials.NewStaticV4(gatewayKey, w.secret, ""), Region: Region, MaxRetries: 1})
	if err != nil {
		return err
	}
	for end := time.Now().Add(weedStart); ; {
		found, err := c.BucketExists(ctx, Bucket)
		if err == nil && !found {
			err = c.MakeBucket(ctx, Bucket, minio.MakeBucketOptions{Region: Region})
		}
		if err == nil || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond): // until all of its parts are up
		}
	}
}

// Kill ends the server as a crash would. An orderly end takes it half a minute.
func (w *Weed) Kill() {
	if w.process == nil {
		return
	}
	_ = w.process.Process.Kill() // it may have ended
	_ = w.process.Wait()         // killed
	w.process = nil
}

// StoreURL is the server's bucket as a URL of a store; more are parameters.
func (w *Weed) StoreURL(prefix string, more ...string) string {
	return "s3://" + Bucket + "/" + prefix + "?" + strings.Join(append([]string{"endpoint=http://" + w.Address, "region=" + Region}, more...), "&")
}

// Env is an environment in which the server can be used.
func (w *Weed) Env() map[string]string {
	return map[string]string{"AWS_ACCESS_KEY_ID": gatewayKey, "AWS_SECRET_ACCESS_KEY": w.secret}
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
