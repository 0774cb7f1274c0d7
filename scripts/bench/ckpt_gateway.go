// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// gatewayBucket is the bucket of the server that the benchmark starts.
const gatewayBucket = "bench"

// startGateway starts an S3 server, versitygw, on a folder, and sets the variables by which this process and all that it starts
// reach it. It returns the URL of its bucket.
func startGateway(ctx context.Context, program, folder string) (url string, end func(), err error) {
	if err := os.Mkdir(filepath.Join(folder, gatewayBucket), 0o755); err != nil { // a bucket is a folder there
		return "", nil, err
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	address := free.Addr().String()
	_ = free.Close() // for the server
	key, secret := "bench", rand.Text()
	cmd := exec.Command(program, "-q", "--port", address, "posix", folder)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+key, "ROOT_SECRET_KEY="+secret, "VGW_REGION=us-east-1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("start %s: %w; scripts/versitygw.sh builds it", program, err)
	}
	end = func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // killed
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			_ = c.Close()
			break
		}
		select {
		case <-ctx.Done():
			end()
			return "", nil, fmt.Errorf("%s does not listen at %s: %w", program, address, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1",
		"AWS_ENDPOINT_URL": "http://" + address, // s3fs reads it
	} {
		if err := os.Setenv(name, value); err != nil {
			end()
			return "", nil, err
		}
	}
	return "s3://" + gatewayBucket + "?endpoint=http://" + address + "&region=us-east-1", end, nil
}
