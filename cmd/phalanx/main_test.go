// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// The test binary is also the program, and what the program starts: by the name it is called with.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"phalanx": func() {
			if len(os.Args) > 1 && os.Args[1] == "daemon" && os.Getenv("FAKE_DAEMON") != "" {
				fakeDaemon(os.Args[2:])
				return
			}
			main()
		},
		"fake-trainer": fakeTrainer,
	})
}

func TestScripts(t *testing.T) {
	golden, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("GOLDEN", golden+"/../../ckpt/testdata/golden-raw-v1")
			e.Setenv("DCP", golden+"/../../ckpt/dcp/testdata")
			e.Setenv("TORCH", golden+"/../../ckpt/torchfile/testdata/golden")
			e.Setenv("SAFE", golden+"/../../ckpt/safetensors/testdata/golden")
			e.Setenv("NO_COLOR", "1")
			return hostileFile(filepath.Join(e.WorkDir, "hostile.safetensors"))
		},
		RequireExplicitExec: true,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"code": exitsWith, "damage": damageByte, "publish": publishSome, "abandon": abandonOne, "flip": flipByte, "huge": hugeFile, "interrupt": interruptIt, "append": appendZeros},
	})
}

// exitsWith runs a program and wants an exact exit code: `code 2 phalanx run`.
func exitsWith(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N program args…")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if err != nil {
		got = "?"
		if x, ok := err.(interface{ ExitCode() int }); ok {
			got = itoa(x.ExitCode())
		}
	}
	if got != args[0] {
		ts.Fatalf("%v: exit code %s (%v), want %s", args[1:], got, err, args[0])
	}
}

// damageByte changes the first byte of a file.
func damageByte(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: damage file")
	}
	path := ts.MkAbs(args[0])
	b, err := os.ReadFile(path)
	ts.Check(err)
	b[0] ^= 1
	ts.Check(os.WriteFile(path, b, 0o600))
}

// flipByte changes the byte at an offset of a file.
func flipByte(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: flip file offset")
	}
	path := ts.MkAbs(args[0])
	b, err := os.ReadFile(path)
	ts.Check(err)
	at, err := strconv.Atoi(args[1])
	ts.Check(err)
	b[at] ^= 1
	ts.Check(os.WriteFile(path, b, 0o600))
}

// appendZeros makes a file longer.
func appendZeros(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: append file bytes")
	}
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	f, err := os.OpenFile(ts.MkAbs(args[0]), os.O_APPEND|os.O_WRONLY, 0)
	ts.Check(err)
	_, err = f.Write(make([]byte, n))
	ts.Check(err)
	ts.Check(f.Close())
}

// hostileFile is a file of safetensors with a tensor whose name a terminal would obey.
func hostileFile(path string) error {
	head := `{"a\u001b[2J\r\nb\u202e":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	return os.WriteFile(path, append(append(b, head...), 7), 0o600)
}

// hugeFile makes a file of safetensors with one tensor of that many MiB, of zeros that take no room on the disk.
func hugeFile(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: huge file MiB")
	}
	size, err := strconv.Atoi(args[1])
	ts.Check(err)
	head := fmt.Appendf(nil, `{"zeros":{"dtype":"U8","shape":[%d,1048576],"data_offsets":[0,%d]}}`, size, size<<20)
	path := ts.MkAbs(args[0])
	ts.Check(os.WriteFile(path, append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...), 0o600))
	ts.Check(os.Truncate(path, int64(8+len(head)+size<<20)))
}

// interruptIt starts a program, sends it INT as soon as a file matches a pattern, and wants 130 within ten seconds.
func interruptIt(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: interrupt pattern program args…")
	}
	c := exec.Command(args[1], args[2:]...)
	c.Dir, c.Env = ts.MkAbs("."), append(os.Environ(), "HOME="+ts.MkAbs("."))
	path, err := exec.LookPath(args[1])
	ts.Check(err)
	c.Path = path
	ts.Check(c.Start())
	deadline := time.Now().Add(10 * time.Second)
	for {
		if found, _ := filepath.Glob(ts.MkAbs(args[0])); len(found) > 0 {
			break
		}
		if time.Now().After(deadline) {
			_ = c.Process.Kill()
			_ = c.Wait()
			ts.Fatalf("nothing matches %s after ten seconds", args[0])
		}
		time.Sleep(time.Millisecond)
	}
	ts.Check(c.Process.Signal(os.Interrupt))
	kill := time.AfterFunc(10*time.Second, func() { _ = c.Process.Kill() })
	defer kill.Stop()
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != 130 {
		ts.Fatalf("%v: exit code %d, want 130", args[1:], code)
	}
}
