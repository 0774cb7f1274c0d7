// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strconv"
	"testing"

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
			return nil
		},
		RequireExplicitExec: true,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"code": exitsWith, "damage": damageByte, "publish": publishSome, "abandon": abandonOne, "flip": flipByte},
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
