// SPDX-License-Identifier: Apache-2.0

//go:build torch

package torchtest

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"phalanx/ckpt/dcp/dcptest"
	"phalanx/ckpt/pickle"
)

var version = flag.String("torch", "2.15", "the version of PyTorch, one that scripts/torch-env.sh knows")

// driver is the process of driver.py.
type driver struct {
	mu      sync.Mutex // one command at a time
	stdin   io.WriteCloser
	stdout  io.ReadCloser
	answers *bufio.Reader
	process *exec.Cmd // leads a process group, with the ranks that it starts
	dtypes  []string  // that this version has, of phalanx.DTypes
}

var torch *driver

// answerWithin is how long a command may take; some start processes of their own that import PyTorch.
const answerWithin = 4 * time.Minute

func TestMain(m *testing.M) {
	flag.Parse()
	code := 1
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, "torchtest:", err)
	} else {
		code = m.Run()
	}
	if torch != nil && torch.process.Process != nil {
		torch.stdin.Close() // ends it
		timer := time.AfterFunc(10*time.Second, torch.kill)
		if err := torch.process.Wait(); err != nil {
			fmt.Fprintln(os.Stderr, "torchtest: driver.py:", err)
			code = 1
		}
		timer.Stop()
	}
	os.Exit(code)
}

func start() error {
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Minute) // it may have to wait for another one, and to install
	defer cancel()
	env := exec.CommandContext(ctx, "../../scripts/torch-env.sh", *version)
	env.Stderr = os.Stderr
	python, err := env.Output()
	if err != nil {
		return fmt.Errorf("no PyTorch %s, see above: %w", *version, err)
	}
	// -I: no PYTHONPATH, no user packages, no files of this folder. -B: leave no compiled files in the checkout.
	d := &driver{process: exec.Command(strings.TrimSpace(string(python)), "-I", "-B", "driver.py")}
	d.process.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES=", "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1")
	d.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	d.process.Stderr = os.Stderr
	if d.stdin, err = d.process.StdinPipe(); err != nil {
		return err
	}
	if d.stdout, err = d.process.StdoutPipe(); err != nil {
		return err
	}
	d.answers = bufio.NewReader(d.stdout)
	if err := d.process.Start(); err != nil {
		return err
	}
	torch = d
	var info struct {
		Version         string
		Dtypes, Modules []string
	}
	if err := d.do(map[string]any{"do": "info"}, &info); err != nil {
		return err
	}
	if !strings.HasPrefix(info.Version, *version+".") || len(info.Modules) > 0 {
		return fmt.Errorf("driver.py runs with PyTorch %s and has loaded %v", info.Version, info.Modules)
	}
	for _, name := range info.Dtypes {
		if dtype := pickle.DType(name); dtype != "" && !slices.Contains(d.dtypes, dtype) {
			d.dtypes = append(d.dtypes, dtype)
		}
	}
	fmt.Fprintln(os.Stderr, "torchtest: PyTorch", info.Version, "with", len(d.dtypes), "dtypes")
	return nil
}

// kill ends the driver and its ranks, and every wait for them.
func (d *driver) kill() {
	syscall.Kill(-d.process.Process.Pid, syscall.SIGKILL)
	d.stdout.Close() // a rank that left the group may hold the other end
}

// do gives a command and waits for its answer. A driver that does not answer in time is killed.
func (d *driver) do(command map[string]any, answer any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	line, err := json.Marshal(command)
	if err != nil {
		return err
	}
	if _, err := d.stdin.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("driver.py has ended: %w", err)
	}
	timer := time.AfterFunc(answerWithin, d.kill)
	reply, err := d.answers.ReadBytes('\n')
	if !timer.Stop() {
		return fmt.Errorf("driver.py did not answer %s within %v", command["do"], answerWithin)
	}
	if err != nil {
		return fmt.Errorf("driver.py has ended during %s: %w", command["do"], err)
	}
	var r struct {
		OK    json.RawMessage
		Error string
	}
	if err := json.Unmarshal(reply, &r); err != nil {
		return fmt.Errorf("driver.py answered %.200q", reply)
	}
	if r.Error != "" {
		return fmt.Errorf("PyTorch %s, %s:\n%s", *version, command["do"], r.Error)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(r.OK, answer)
}

// ask is do, for tests: an error ends them.
func ask(t *testing.T, command map[string]any, answer any) {
	t.Helper()
	if err := torch.do(command, answer); err != nil {
		t.Fatal(err)
	}
}

// packed is a tensor as it travels.
type packed struct {
	Name  string   `json:"name"`
	DType string   `json:"dtype"` // PyTorch's name
	Shape []int    `json:"shape"`
	Bytes []byte   `json:"bytes"`
	At    int64    `json:"at,omitempty"`
	Kind  string   `json:"kind,omitempty"`  // how its elements lie in memory, see driver.py
	Place []string `json:"place,omitempty"` // over the dimensions of a mesh of ranks: R, or the dimension that is cut
}

func pack(t dcptest.Tensor) packed {
	return packed{Name: t.Name, DType: pickle.TorchName(t.DType), Shape: t.Shape, Bytes: t.Bytes}
}

// same compares what PyTorch has with what it should have.
func same(t *testing.T, got []packed, want []dcptest.Tensor) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d tensors, want %d", len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		if g.DType != pickle.TorchName(w.DType) || !slices.Equal(g.Shape, w.Shape) || string(g.Bytes) != string(w.Bytes) {
			t.Errorf("%q: PyTorch has %s %v % x, want %s %v % x", w.Name, g.DType, g.Shape, head(g.Bytes), w.DType, w.Shape, head(w.Bytes))
		}
	}
}

func head(b []byte) []byte { return b[:min(len(b), 24)] }
