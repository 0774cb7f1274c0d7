// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Torchrun is what a command line says in torchrun's words: those that mean something here, and notes about those that do not.
// None of it is kept: it is turned into settings before anything starts.
type Torchrun struct {
	Notes []string // for the operator, about words that change nothing

	flags                        *pflag.FlagSet
	module, noPython, standalone bool
	endpoint, masterAddr         string
	masterPort                   int
}

// aliases are torchrun's names of our flags.
var aliases = map[string]string{"nproc-per-node": "nproc", "rdzv-id": "job", "local-addr": "advertise"}

// normalize makes torchrun's spelling ours: underscores are dashes, and what has another name here is renamed.
func normalize(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	name = strings.ReplaceAll(name, "_", "-")
	return pflag.NormalizedName(cmp.Or(aliases[name], name))
}

// noMeaning are torchrun's flags that change nothing here, and why. Those with a letter have it as their short form.
var noMeaning = []struct{ name, letter, why string }{
	{"rdzv-backend", "", "the daemons agree on the world themselves"},
	{"rdzv-conf", "", "the daemons agree on the world themselves; --start-timeout and --hang-timeout bound how long they wait"},
	{"node-rank", "", "ranks follow from the members; --host NAME names a host"},
	{"monitor-interval", "", "the end of a trainer is seen at once"},
	{"start-method", "", "a trainer is always started as a program"},
	{"event-log-handler", "", "phalanx status --explain tells the events"},
	{"redirects", "r", "the output of every trainer is kept in DIR/log and printed"},
	{"tee", "t", "the output of every trainer is kept in DIR/log and printed"},
	{"log-line-prefix-template", "", "lines begin with the member's name"},
	{"local-ranks-filter", "", "the output of every trainer is printed"},
	{"duplicate-stdout-filters", "", "the output of every trainer is kept in DIR/log and printed"},
	{"duplicate-stderr-filters", "", "the output of every trainer is kept in DIR/log and printed"},
	{"logs-specs", "", "--log-dir says where output is kept"},
	{"signals-to-handle", "", "TERM and INT end the run in order, USR1, USR2, HUP and WINCH go to the trainers"},
}

// refused are torchrun's flags that a script may rely on and that do not exist here.
var refused = []struct{ name, instead string }{
	{"run-path", "give the path of the program as CMD, after the flags"},
	{"numa-binding", "bind the trainers in CMD, for instance with numactl"},
	{"virtual-local-rank", "let the script use LOCAL_RANK"},
}

// noted is the value of a flag without a meaning.
type noted struct {
	t         *Torchrun
	name, why string
}

func (n noted) String() string { return "" }
func (n noted) Type() string   { return "TEXT" }
func (n noted) Set(text string) error {
	if n.name != "rdzv-backend" || text != "phalanx" { // that is what happens
		n.t.Notes = append(n.t.Notes, fmt.Sprintf("--%s %s changes nothing: %s", n.name, text, n.why))
	}
	return nil
}

// impossible is the value of a flag that is refused.
type impossible struct{ instead string }

func (i impossible) String() string { return "" }
func (i impossible) Type() string   { return "TEXT" }
func (i impossible) Set(string) error {
	return errors.New("not possible with phalanx run; " + i.instead)
}

// seconds is a flag that torchrun gives in seconds.
type seconds struct{ d *Duration }

func (s seconds) String() string { return "" }
func (s seconds) Type() string   { return "SECONDS" }
func (s seconds) Set(text string) error {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n > 0 && n < 1e9) {
		return fmt.Errorf("%q is no number of seconds", text)
	}
	*s.d = Duration(n * float64(time.Second))
	return nil
}

// TorchrunFlags declares torchrun's flags beside our own, which must be declared already.
func (s *Settings) TorchrunFlags(f *pflag.FlagSet) *Torchrun {
	t := &Torchrun{flags: f}
	f.SetNormalizeFunc(normalize)
	f.BoolVarP(&t.module, "module", "m", false, "CMD is a Python module, run by python -m")
	f.BoolVar(&t.noPython, "no-python", false, "CMD is run as it is, also when it ends with .py")
	f.BoolVar(&t.standalone, "standalone", false, "")
	f.StringVar(&t.endpoint, "rdzv-endpoint", "", "")
	f.StringVar(&t.masterAddr, "master-addr", "", "")
	f.IntVar(&t.masterPort, "master-port", 29500, "")
	f.Var(seconds{&s.Grace}, "shutdown-timeout", "")
	for _, n := range noMeaning {
		f.VarP(noted{t, n.name, n.why}, n.name, n.letter, "")
	}
	for _, r := range refused {
		f.Var(impossible{r.instead}, r.name, "")
	}
	f.Lookup("virtual-local-rank").NoOptDefVal = "true"
	f.VisitAll(func(p *pflag.Flag) {
		if p.Usage == "" {
			p.Hidden = true // docs/cli.md lists them
		}
	})
	return t
}

// Apply turns torchrun's words into settings. args are CMD and its arguments; environ has the form of os.Environ.
func (t *Torchrun) Apply(s *Settings, args, environ []string) error {
	var err error
	if s.Command, err = t.command(args, environ); err != nil {
		return err
	}
	if name, plain := withoutSteps(s.Command, environ); plain && !t.flags.Changed("plain") {
		s.Plain = true
		t.Notes = append(t.Notes, name+" does not name phalanx, so it runs as under torchrun: any change of the world starts all of it again (--plain). "+
			"Give --plain=false if something that it imports uses phalanx.torch")
	}
	if len(args) > 0 && (args[0] == "torchrun" || strings.HasSuffix(args[0], "/torchrun")) {
		t.Notes = append(t.Notes, "CMD is torchrun, which starts ranks of its own below each member: give its arguments to phalanx run instead")
	}
	if t.standalone && (s.MaxHosts > 1 || len(s.Join) > 0) {
		return usage("leave --standalone out", "--standalone is for one host, --nnodes and --join are for several")
	}
	return t.meet(s)
}

// command is what a trainer is started with: a script or a module runs with Python, unbuffered so that its lines come when they
// are printed.
func (t *Torchrun) command(args, environ []string) ([]string, error) {
	switch {
	case t.module && t.noPython:
		return nil, usage("give one of them", "--module and --no-python")
	case len(args) == 0 || t.noPython:
		return args, nil
	case t.module:
		python, err := python(environ)
		return append([]string{python, "-u", "-m"}, args...), err
	case strings.HasSuffix(args[0], ".py"):
		if info, err := os.Stat(args[0]); errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir() {
			return nil, usage("give the path of a script", "command of the trainers: %s: there is no such script", args[0])
		}
		python, err := python(environ)
		return append([]string{python, "-u"}, args...), err
	}
	return args, nil
}

// python is the interpreter: torchrun's variable, or what PATH has.
func python(environ []string) (string, error) {
	if value := variable(environ, "PYTHON_EXEC"); value != "" {
		return value, nil
	}
	for _, name := range []string{"python", "python3"} {
		if _, err := exec.LookPath(name); err == nil {
			return name, nil
		}
	}
	return "", usage("activate the environment with PyTorch, or set PYTHON_EXEC", "no python in PATH")
}

// meet turns the address that all hosts name for torchrun into --bind on the host that has it, and into --join on the others.
func (t *Torchrun) meet(s *Settings) error {
	at, name := t.endpoint, "--rdzv-endpoint"
	if at == "" && t.masterAddr != "" {
		at, name = net.JoinHostPort(t.masterAddr, strconv.Itoa(t.masterPort)), "--master-addr"
	}
	switch {
	case at == "":
		return nil
	case s.MaxHosts == 1:
		t.Notes = append(t.Notes, name+" "+at+" changes nothing on one host: daemons and store find free ports themselves")
		return nil
	case len(s.Join) > 0:
		return usage("give one of them", "%s and --join", name)
	}
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		host, port = at, "29400" // torchrun's
	}
	ips, err := net.LookupIP(host)
	if err != nil {
		return usage("give HOST:PORT that all hosts can resolve", "%s %s: %w", name, at, err)
	}
	for _, ip := range ips {
		addr, _ := netip.AddrFromSlice(ip)
		if addr = addr.Unmap(); addr.IsLoopback() {
			return usage("name the host by an address that the others can dial", "%s %s is the loopback of every host: each would found a job of its own", name, at)
		}
		if ours(addr) {
			if s.Bind == "" && s.Interface == "" {
				s.Bind = net.JoinHostPort(addr.String(), port)
			}
			return nil
		}
	}
	s.Join = []string{net.JoinHostPort(host, port)}
	return nil
}

// ours reports whether an address is one of this host's.
func ours(ip netip.Addr) bool {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return false // then a daemon of another host is looked for there, which says what is wrong
	}
	for _, a := range addresses {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().Unmap() == ip {
			return true
		}
	}
	return false
}
