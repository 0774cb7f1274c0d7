// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"phalanx/kernels"
)

const echoVerb = "echo"

// limits are what the machine does without this project. Bandwidth counts the bytes of the destination, the best of some
// runs: a neighbour only takes.
type limits struct {
	CopyGBs    float64 `json:"copy_gb_per_s"`           // 64 MiB on one core
	AddGBs     float64 `json:"add_gb_per_s"`            // 64 MiB in place on one core
	CopyAllGBs float64 `json:"copy_all_cores_gb_per_s"` // all cores together
	AddAllGBs  float64 `json:"add_all_cores_gb_per_s"`
	RoundTrip  float64 `json:"tcp_round_trip_us"` // 4 KiB over loopback between two processes, median
	DigestGBs  float64 `json:"digest_gb_per_s"`   // 64 MiB on one core
	Load       string  `json:"load"`
}

// measureLimits is called before and after the measurements; the better values count.
func measureLimits(ctx context.Context, _ plan, _ string, r *results) error {
	l := limits{Load: loadAverage()}
	l.CopyGBs = bandwidth(1, func(dst, src []float32) { copy(dst, src) })
	l.AddGBs = bandwidth(1, func(dst, src []float32) { kernels.AddF32(dst, dst, src) })
	l.CopyAllGBs = bandwidth(runtime.NumCPU(), func(dst, src []float32) { copy(dst, src) })
	l.AddAllGBs = bandwidth(runtime.NumCPU(), func(dst, src []float32) { kernels.AddF32(dst, dst, src) })
	l.DigestGBs = bandwidth(1, func(dst, _ []float32) {
		kernels.TensorDigest(1, kernels.Tensor{Name: "gradient", DType: "f32", Shape: []int{len(dst)}, Data: kernels.Bytes(dst)})
	})
	var err error
	if l.RoundTrip, err = roundTrip(ctx); err != nil {
		return err
	}
	r.LimitsRaw = append(r.LimitsRaw, l)
	best := &r.Limits
	best.CopyGBs, best.AddGBs = max(best.CopyGBs, l.CopyGBs), max(best.AddGBs, l.AddGBs)
	best.CopyAllGBs, best.AddAllGBs = max(best.CopyAllGBs, l.CopyAllGBs), max(best.AddAllGBs, l.AddAllGBs)
	best.DigestGBs = max(best.DigestGBs, l.DigestGBs)
	if best.RoundTrip == 0 || l.RoundTrip < best.RoundTrip {
		best.RoundTrip = l.RoundTrip
	}
	return nil
}

// bandwidth runs an operation over 64 MiB on some cores at once and returns their bytes per second, in 10^9.
func bandwidth(cores int, op func(dst, src []float32)) float64 {
	type pair struct{ dst, src []float32 }
	pairs := make([]pair, cores)
	for i := range pairs {
		pairs[i] = pair{make([]float32, large/4), make([]float32, large/4)}
		for k := range pairs[i].src { // touched, so that the pages exist
			pairs[i].src[k], pairs[i].dst[k] = float32(k&7), 1
		}
	}
	var rates []float64
	for range 11 {
		began := time.Now()
		var group sync.WaitGroup
		for _, p := range pairs {
			group.Go(func() { op(p.dst, p.src) })
		}
		group.Wait()
		rates = append(rates, float64(cores)*large/1e9/time.Since(began).Seconds())
	}
	return summarise(rates).Max
}

// roundTrip sends 4 KiB to another process and back, in microseconds.
func roundTrip(ctx context.Context) (float64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, self, echoVerb)
	said, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = cmd.Process.Kill() // has ended with its connection
		_ = cmd.Wait()
	}()
	var addr string
	if _, err := fmt.Fscan(bufio.NewReader(said), &addr); err != nil {
		return 0, fmt.Errorf("read the address of the echo: %w", err)
	}
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return 0, err
	}
	b := make([]byte, 4<<10)
	var took []float64
	for range 1000 {
		began := time.Now()
		if _, err := conn.Write(b); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(conn, b); err != nil {
			return 0, err
		}
		took = append(took, float64(time.Since(began).Nanoseconds())/1e3)
	}
	return summarise(took).P50, nil
}

// echoMain prints an address, sends back what comes over one connection and ends with it.
func echoMain() int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 1
	}
	fmt.Println(l.Addr())
	conn, err := l.Accept()
	if err != nil {
		return 1
	}
	b := make([]byte, 4<<10)
	for {
		if _, err := io.ReadFull(conn, b); err != nil {
			return 0
		}
		if _, err := conn.Write(b); err != nil {
			return 0
		}
	}
}
