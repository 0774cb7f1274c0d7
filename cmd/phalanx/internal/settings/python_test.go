// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whether a program speaks the step protocol follows from its text, wherever python finds it.
func TestWithoutSteps(t *testing.T) {
	t.Chdir(t.TempDir())
	elsewhere := t.TempDir()
	for path, text := range map[string]string{
		"plain.py": "import torch\n", "steps.py": "import torch\nimport phalanx.torch\n", "other.py": "import phalanxes\n", "noext": "import torch\n",
		"pkg/__main__.py": "import torch\n", "pkg/sub.py": "from phalanx.torch import Elastic\n", "binary.py": "\x00phalanx", "empty.py": "",
		elsewhere + "/far.py": "import torch\n", elsewhere + "/plain.py": "import phalanx\n",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	environ := []string{"PYTHONPATH=/none:" + elsewhere, "PYTHON_EXEC=/opt/py"}
	for line, want := range map[string]bool{
		"python plain.py": true, "python3.11 -u -X dev -W error plain.py --x phalanx": true, "/usr/bin/python3 -u steps.py": false, "/opt/py -u plain.py": true,
		"python other.py": true, "python noext": true, "python -m pkg": true, "python -m pkg.sub": false, "python pkg": true, "python -m far": true, "python -m plain": true,
		"python -c pass": true, "python -c phalanx": false, "python binary.py": false, "python empty.py": true,
		"python missing.py": false, "python -m missing": false, "python -": false, "python": false, "./plain.py": false, "bash plain.py": false, "": false,
	} {
		if _, got := withoutSteps(strings.Fields(line), environ); got != want {
			t.Errorf("%q: plain %t, want %t", line, got, want)
		}
	}
}

// A flag, a variable or the file decides before the text does.
func TestPlainIsAsked(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("train.py", []byte("import torch\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	environ := []string{"PYTHON_EXEC=/opt/py"}
	for line, want := range map[string]bool{"train.py": true, "--plain=false train.py": false, "--plain train.py": true, "--no-python train.py": false, "-m train": true} {
		s, r, err := torchrun(t, environ, strings.Fields(line)...)
		if err != nil || s.Plain != want {
			t.Errorf("%s: plain %t, %v, want %t", line, s.Plain, err, want)
		}
		if told := strings.Contains(strings.Join(r.Notes, "\n"), "does not name phalanx"); told != (want && !strings.Contains(line, "--plain")) {
			t.Errorf("%s: told %t: %v", line, told, r.Notes)
		}
	}
}
