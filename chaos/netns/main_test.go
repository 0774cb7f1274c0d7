// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// bin is the folder of the programs under test, data the text that they train on.
var bin, data string

func TestMain(m *testing.M) {
	if what := os.Getenv("PHALANX_NETNS_TALK"); what != "" { // one end of a talk between hosts
		if err := talker(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv("PHALANX_NETNS") == "off" {
		fmt.Fprintln(os.Stderr, "netns: PHALANX_NETNS=off: nothing was tested")
		return
	}
	// The tests wait more than they compute, each in a network of its own: six at a time leave the cores room.
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	code, err := build(m.Run)
	if err != nil {
		fmt.Fprintf(os.Stderr, "netns: %v\n", err)
		code = 1
	}
	os.Exit(code)
}

// build makes the programs as make build does, without the race detector: what is tested is what is shipped.
func build(run func() int) (code int, err error) {
	dir, err := os.MkdirTemp("", "phalanx-netns-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cmd := exec.Command("go", "build", "-trimpath", "-o", dir+"/", "../../cmd/phalanx", "../../cmd/phalanx-lm")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOAMD64=v1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build: %w\n%s", err, out)
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return 1, fmt.Errorf("text: %w", err)
	}
	bin, data = dir, filepath.Join(strings.TrimSpace(string(root)), "src", "sort")
	return run(), nil
}
