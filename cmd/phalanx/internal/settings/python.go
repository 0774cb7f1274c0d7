// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A trainer speaks the step protocol or does not, and all daemons of a job must know which before the first one starts: ranks are
// given out before a start in one kind of job and after it in the other. For Python programs the text tells: it is the same on
// every host and at every start, where what a process does first would be known late, and twice as late where it was guessed wrong.

var (
	pythonName = regexp.MustCompile(`^python[0-9.]*$`)
	ourName    = regexp.MustCompile(`(?m)\bphalanx\b`)
)

// maxScript is how much of a program is looked at.
const maxScript = 4 << 20

// withoutSteps reports whether a command is a Python program whose own text does not name phalanx, and how to call it. What it
// imports from elsewhere is not looked at.
func withoutSteps(command, environ []string) (name string, plain bool) {
	name, text := program(command, environ)
	return name, text != nil && !ourName.Match(text)
}

// program is the name and text of a Python program, nil when the command is none or its text is not found.
func program(command, environ []string) (name string, text []byte) {
	if len(command) == 0 || !pythonName.MatchString(filepath.Base(command[0])) && !pythonExec(command[0], environ) {
		return "", nil
	}
	for i := 1; i < len(command); i++ {
		word := command[i]
		next := ""
		if i+1 < len(command) {
			next = command[i+1]
		}
		switch {
		case word == "-c":
			return "the code after -c", []byte(next)
		case word == "-m":
			return next, module(next, environ)
		case word == "-X", word == "-W", word == "--check-hash-based-pycs":
			i++
		case !strings.HasPrefix(word, "-"):
			if info, err := os.Stat(word); err == nil && info.IsDir() {
				word = filepath.Join(word, "__main__.py")
			}
			return word, read(word)
		case word == "-":
			return "", nil
		}
	}
	return "", nil
}

func pythonExec(program string, environ []string) bool {
	return program != "" && program == variable(environ, "PYTHON_EXEC")
}

func variable(environ []string, name string) string {
	for _, e := range environ {
		if value, ok := strings.CutPrefix(e, name+"="); ok {
			return value
		}
	}
	return ""
}

// module is the text of a module where python -m looks first: in the working directory, and in PYTHONPATH.
func module(name string, environ []string) []byte {
	path := filepath.Join(strings.Split(name, ".")...)
	for _, dir := range append([]string{"."}, filepath.SplitList(variable(environ, "PYTHONPATH"))...) {
		for _, file := range []string{path + ".py", filepath.Join(path, "__main__.py")} {
			if text := read(filepath.Join(dir, file)); text != nil {
				return text
			}
		}
	}
	return nil
}

// read returns the text of a file, not nil when there is one.
func read(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxScript))
	if err != nil || bytes.IndexByte(b, 0) >= 0 {
		return nil
	}
	return append([]byte{}, b...)
}
