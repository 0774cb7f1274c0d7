// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// bin is the folder of the programs under test, data the text that they train on.
var bin, data string

// side is how many of the tests that mostly wait run at a time.
const side = 3

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", strconv.Itoa(side)); err != nil {
			panic(err)
		}
	}
	code, err := build(m.Run)
	if err != nil {
		fmt.Fprintf(os.Stderr, "chaos: %v\n", err)
		code = 1
	}
	os.Exit(code)
}

// build makes the programs as make build does, without the race detector: what is tested is what is shipped.
func build(run func() int) (code int, err error) {
	dir, err := os.MkdirTemp("", "phalanx-chaos-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cmd := exec.Command("go", "build", "-trimpath", "-o", dir+"/", "../cmd/phalanx", "../cmd/phalanx-lm", "./internal/shards")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOAMD64=v1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build: %w\n%s", err, out)
	}
	bin, data = dir, filepath.Join(dir, "text")
	if err := collectText(data); err != nil {
		return 1, err
	}
	return run(), nil
}

// collectText copies a little real text: trainers start many times, and reading the whole Go source tree each time would be
// most of what is measured.
func collectText(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("text: %w", err)
	}
	names, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(root)), "src", "strconv", "*.go"))
	if err != nil || len(names) == 0 {
		return fmt.Errorf("text: no Go sources below %s: %w", root, err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(name)), b, 0o644)
		}
		if err != nil {
			return fmt.Errorf("text: %w", err)
		}
	}
	return nil
}

func program(name string) string { return filepath.Join(bin, name) }

var finalLine = regexp.MustCompile(`(?m)^final step=\d+ digest=([0-9a-f]{32})$`)

// oracles keeps the results of undisturbed runs by their arguments.
var oracles sync.Map

// oracle is the digest that training with these arguments ends with when one process does it alone.
func oracle(t *testing.T, args ...string) string {
	t.Helper()
	key := strings.Join(args, " ")
	once, _ := oracles.LoadOrStore(key, sync.OnceValues(func() (string, error) {
		out, err := exec.Command(program("phalanx-lm"), append([]string{"--alone"}, args...)...).CombinedOutput()
		m := finalLine.FindSubmatch(out)
		if err != nil || m == nil {
			return "", fmt.Errorf("undisturbed run: %v\n%s", err, out)
		}
		return string(m[1]), nil
	}))
	digest, err := once.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func init() {
	if runtime.GOOS != "linux" {
		panic("chaos: the tests signal processes and read /proc: they need Linux")
	}
}
