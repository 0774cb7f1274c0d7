// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// torchrun reads a command line as `phalanx run` does.
func torchrun(t *testing.T, environ []string, line ...string) (*Settings, *Torchrun, error) {
	t.Helper()
	s := Default()
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.SetInterspersed(false)
	s.Flags(f)
	r := s.TorchrunFlags(f)
	if err := f.Parse(line); err != nil {
		return s, r, err
	}
	return s, r, r.Apply(s, f.Args(), environ)
}

func TestTorchrunsSpellings(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("train.py", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	python := []string{"PYTHON_EXEC=/opt/py"}
	for line, want := range map[string]func(s *Settings) bool{
		"--nproc-per-node 4 train.py":      func(s *Settings) bool { return s.Nproc == 4 },
		"--nproc_per_node=4 train.py":      func(s *Settings) bool { return s.Nproc == 4 },
		"--max_restarts 7 train.py":        func(s *Settings) bool { return s.MaxRestarts == 7 },
		"--rdzv-id r1 train.py":            func(s *Settings) bool { return s.Job == "r1" },
		"--local_addr 10.0.0.1 train.py":   func(s *Settings) bool { return s.Advertise == "10.0.0.1" },
		"--log_dir l train.py":             func(s *Settings) bool { return s.LogDir == "l" },
		"--role r train.py":                func(s *Settings) bool { return s.Role == "r" },
		"--shutdown-timeout 2.5 train.py":  func(s *Settings) bool { return s.Grace == Duration(2500*time.Millisecond) },
		"--standalone --nnodes=1 train.py": func(s *Settings) bool { return s.MaxHosts == 1 },
		"train.py --lr 3":                  func(s *Settings) bool { return slices.Equal(s.Command, strings.Fields("/opt/py -u train.py --lr 3")) },
		"-m pkg.mod --lr 3":                func(s *Settings) bool { return slices.Equal(s.Command, strings.Fields("/opt/py -u -m pkg.mod --lr 3")) },
		"--module pkg.mod -m":              func(s *Settings) bool { return slices.Equal(s.Command, strings.Fields("/opt/py -u -m pkg.mod -m")) },
		"--no-python train.py":             func(s *Settings) bool { return slices.Equal(s.Command, []string{"train.py"}) },
		"-- ./train --nproc 3": func(s *Settings) bool {
			return slices.Equal(s.Command, strings.Fields("./train --nproc 3")) && s.Nproc == 1
		},
		"--rdzv-backend phalanx --nnodes 1 x":                         func(s *Settings) bool { return len(s.Join) == 0 },
		"--nnodes 2 --rdzv-endpoint 192.0.2.1:7 train.py":             func(s *Settings) bool { return slices.Equal(s.Join, []string{"192.0.2.1:7"}) && s.Bind == "" },
		"--nnodes 2 --rdzv-endpoint 192.0.2.1 train.py":               func(s *Settings) bool { return slices.Equal(s.Join, []string{"192.0.2.1:29400"}) },
		"--nnodes 2 --master-addr 192.0.2.1 train.py":                 func(s *Settings) bool { return slices.Equal(s.Join, []string{"192.0.2.1:29500"}) },
		"--nnodes 2 --master_addr 192.0.2.1 --master_port 9 train.py": func(s *Settings) bool { return slices.Equal(s.Join, []string{"192.0.2.1:9"}) },
	} {
		s, _, err := torchrun(t, python, strings.Fields(line)...)
		if err != nil || !want(s) {
			t.Errorf("%s: %v, %+v", line, err, s)
		}
	}
	for line, want := range map[string]string{
		"--rdzv-backend c10d train.py":         "--rdzv-backend c10d changes nothing: the daemons agree",
		"--rdzv_conf a=1 train.py":             "--rdzv-conf a=1 changes nothing",
		"--node_rank 1 train.py":               "ranks follow from the members",
		"-r 3 train.py":                        "--redirects 3 changes nothing",
		"-t 3 train.py":                        "--tee 3 changes nothing",
		"--rdzv-endpoint localhost:0 train.py": "changes nothing on one host",
		"torchrun --nproc-per-node 2 train.py": "CMD is torchrun",
		"--rdzv-backend phalanx train.py":      "",
	} {
		_, r, err := torchrun(t, python, strings.Fields(line)...)
		r.Notes = slices.DeleteFunc(r.Notes, func(n string) bool { return strings.Contains(n, "does not name phalanx") })
		if got := strings.Join(r.Notes, "\n"); err != nil || !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: %v, notes %q, want %q", line, err, got, want)
		}
	}
	for line, want := range map[string]string{
		"--nproc-per-node many train.py":                     `"many" is no number; give one, or auto, gpu or cpu`,
		"-m --no-python train.py":                            "--module and --no-python",
		"missing.py":                                         "missing.py: there is no such script",
		"--standalone --nnodes 2 train.py":                   "--standalone is for one host",
		"--standalone --join a:1 train.py":                   "--standalone is for one host",
		"--nnodes 2 --rdzv-endpoint 127.0.0.1:7 train.py":    "each would found a job of its own",
		"--nnodes 2 --join a:1 --rdzv-endpoint b:1 train.py": "--rdzv-endpoint and --join",
		"--virtual-local-rank train.py":                      "not possible with phalanx run; let the script",
		"--run-path train.py":                                "give the path of the program",
		"--shutdown-timeout soon train.py":                   "no number of seconds",
	} {
		if _, _, err := torchrun(t, python, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if _, _, err := torchrun(t, nil, "train.py"); err == nil || !strings.Contains(err.Error(), "no python in PATH") {
		t.Errorf("without a python: %v", err)
	}
}

// The host that has the address founds the job there; with --bind it does so at the address that it was given.
func TestTheRendezvousHostFounds(t *testing.T) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, a := range addresses {
		ip, _, err := net.ParseCIDR(a.String())
		if err != nil || ip.IsLoopback() || ip.IsLinkLocalUnicast() {
			continue
		}
		tried++
		at := net.JoinHostPort(ip.String(), "7400")
		s, _, err := torchrun(t, nil, "--nnodes", "2", "--rdzv-endpoint", at, "x")
		if err != nil || s.Bind != at || len(s.Join) > 0 {
			t.Errorf("%s: bind %q, join %v, %v", at, s.Bind, s.Join, err)
		}
		s, _, err = torchrun(t, nil, "--nnodes", "2", "--bind", "10.9.9.9", "--rdzv-endpoint", at, "x")
		if err != nil || s.Bind != "10.9.9.9" || len(s.Join) > 0 {
			t.Errorf("%s with --bind: bind %q, join %v, %v", at, s.Bind, s.Join, err)
		}
	}
	if tried == 0 {
		t.Log("this machine has no address but loopback; a host that joins is tested all the same")
	}
}

func TestMembers(t *testing.T) {
	for _, c := range []struct {
		text             string
		cpus, gpus, want int
	}{
		{"3", 8, 2, 3}, {"cpu", 8, 2, 8}, {"auto", 8, 2, 2}, {"auto", 8, 0, 8}, {"gpu", 8, 2, 2}, {"gpu", 8, 0, -1}, {"GPU", 8, 2, -1}, {"", 8, 2, -1},
	} {
		got, err := members(c.text, c.cpus, c.gpus)
		if err != nil {
			got = -1
		}
		if got != c.want {
			t.Errorf("%q of %d processors and %d GPUs: %d, want %d", c.text, c.cpus, c.gpus, got, c.want)
		}
	}
	for visible, want := range map[string]int{"": 0, "0,1": 2, "3": 1, "1,7,2": 1, "-1": 0, "GPU-8a,GPU-9b": 2, "0,1,2,3,0": 4} {
		if got := gpus(4, visible, true); got != want {
			t.Errorf("CUDA_VISIBLE_DEVICES=%s of 4: %d, want %d", visible, got, want)
		}
	}
	if gpus(4, "", false) != 4 {
		t.Error("without the variable all are seen")
	}
}

// --log-dir is where the output lies, also of a second start, and is not moved.
func TestPlaceLogs(t *testing.T) {
	s := &Settings{Dir: t.TempDir(), Job: "j", LogDir: filepath.Join(t.TempDir(), "logs")}
	for range 2 {
		if err := s.PlaceLogs(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(s.Dir, "log", "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(s.LogDir, "j", "x")); err != nil {
		t.Error(err)
	}
	other := *s
	other.LogDir = t.TempDir()
	if err := other.PlaceLogs(); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("another place: %v", err)
	}
}

func TestWarmFlag(t *testing.T) {
	for text, want := range map[string]int{"--warm": 1, "--warm=2": 2, "--warm=0": 0, "--warm=true": 1, "--warm=false": 0} {
		if s, _, err := torchrun(t, nil, text, "x"); err != nil || s.Warm != want {
			t.Errorf("%s: %d, %v, want %d", text, s.Warm, err, want)
		}
	}
	for _, text := range []string{"--warm=cuda", "--warm=-1", "--warm=some"} {
		if _, _, err := torchrun(t, nil, text, "x"); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}
