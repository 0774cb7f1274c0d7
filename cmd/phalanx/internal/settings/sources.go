// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"phalanx/internal/nearest"
)

// FileName is the configuration file, in DIR or in the working directory.
const FileName = "phalanx.toml"

// Flags declares the flags of `phalanx run`. Every one of them is also a variable and a key of the file.
func (s *Settings) Flags(f *pflag.FlagSet) {
	s.PlaceFlags(f)
	f.StringVar(&s.Host, "host", s.Host, "`NAME` of this host in the job (default: the hostname)")
	f.Var((*nproc)(&s.Nproc), "nproc", "members on each host: a number, or one for each GPU or processor; auto is GPUs where there are some")
	f.Var((*hosts)(s), "nnodes", "hosts of the job, `MIN:MAX`; with fewer than MIN the job waits")
	f.IntVar(&s.Min, "min", s.Min, "least `N` members that may train (default: one replica group, or what MIN hosts need)")
	f.IntVar(&s.Spares, "spares", s.Spares, "`K` more members on this host that wait to take a place")
	f.Var((*warm)(&s.Warm), "warm", "start `K` trainers ahead on this host, which take over where one dies; --warm alone is --warm=1")
	f.Lookup("warm").NoOptDefVal = "1"
	f.StringSliceVar(&s.Join, "join", s.Join, "`ADDR:PORT,…` of members to join; names are resolved again at every try")
	f.StringVar(&s.Bind, "bind", s.Bind, "listen on `ADDR[:PORT]`; the port is that of this host's member 0")
	f.StringVar(&s.Advertise, "advertise", s.Advertise, "`ADDR` that the others dial (default: what is bound)")
	f.StringVar(&s.Interface, "interface", s.Interface, "listen on the address of network interface `I`")
	f.StringVar(&s.KeyFile, "key-file", s.KeyFile, "read the job key from `F` (else PHALANX_KEY, else DIR/key on one host)")
	f.Var(&s.SaveEvery, "save-every", "save every so many steps, or every so often; the last step is always saved")
	f.Var(&s.SaveFailure, "save-failure", "`continue|halt-after=N|halt-older=D`: go on when saves fail, or end the job when N in a row have, or when nothing newer than D is durable")
	f.IntVar(&s.Slabs, "slabs", s.Slabs, "`1|2` states that a member stages by turns: so many saves can be under way at once")
	f.Var(&s.MaxHostBytes, "max-host-bytes", "members of this host may use `BYTES` of memory for saves and heals, besides the trainers' own; 0: any")
	f.Var(&s.CopyRate, "copy-rate", "read at most `BYTES` a second for the copy of another host's staged state; 0: any")
	s.KeepFlags(f)
	f.Var(&s.GCGrace, "gc-grace", "data of forgotten checkpoints and abandoned saves stay for `D`")
	f.StringVar(&s.LogDir, "log-dir", s.LogDir, "keep output in `D`/JOB (default: DIR/log)")
	f.IntVar(&s.KeepLogs, "keep-logs", s.KeepLogs, "keep what the `N` newest lives of each member printed; 0: all")
	f.StringVar(&s.Resume, "resume", s.Resume, "`auto|never|STEP`: from the newest checkpoint; refuse what holds state; from that step")
	f.StringVar(&s.WarmStart, "warm-start", s.WarmStart, "begin a new job with the tensors of the checkpoint at `PATH|URL`, of any kind that ckpt inspect reads")
	f.StringSliceVar(&s.Only, "only", s.Only, "with --warm-start: only tensors whose names match `GLOB`")
	f.StringSliceVar(&s.Rename, "rename", s.Rename, "with --warm-start: `OLD=NEW`, a tensor, or with a dot at the end of OLD all whose names begin with it")
	f.BoolVar(&s.Strip, "strip-prefixes", s.Strip, `with --warm-start: remove what wrappers put into names: "module." and "_orig_mod."`)
	f.BoolVar(&s.Cast, "cast", s.Cast, "with --warm-start: cast floating-point tensors to the dtypes of the trainers")
	f.BoolVar(&s.Partial, "partial", s.Partial, "with --warm-start: tensors may be missing on either side; those that the checkpoint lacks stay as the seed makes them")
	f.IntVar(&s.MaxRestarts, "max-restarts", s.MaxRestarts, "`N` starts of a member without a committed step since the last one")
	f.Var(&s.HangTimeout, "hang-timeout", "a step may take that long until 100 steps are measured")
	f.Var(&s.StartTimeout, "start-timeout", "a trainer must say hello within")
	f.Var(&s.Grace, "grace", "time for the step in progress when the job is stopped")
	f.StringVar(&s.HealthCheck, "health-check", s.HealthCheck, "run `CMD` before each start of a trainer; non-zero keeps the member out")
	f.StringVar(&s.Role, "role", s.Role, "`NAME` that the trainers find in ROLE_NAME")
	f.BoolVar(&s.Plain, "plain", s.Plain, "no step protocol: any change restarts all trainers")
}

// KeepFlags declares the flags that say which checkpoints are kept.
func (s *Settings) KeepFlags(f *pflag.FlagSet) {
	f.IntVar(&s.Keep, "keep", s.Keep, "keep the `N` newest checkpoints")
	f.Uint64Var(&s.KeepEvery, "keep-every", s.KeepEvery, "keep those whose step is a multiple of `STEPS` as well; 0: no such rule")
	f.Var(&s.KeepTime, "keep-time", "keep the first one in each `D` as well; 0: no such rule")
}

// PlaceFlags declares the flags that say which job is meant; every verb has them.
func (s *Settings) PlaceFlags(f *pflag.FlagSet) {
	f.StringVar(&s.Job, "job", s.Job, "`NAME` of the job (default: the base name of DIR)")
	f.StringVar(&s.Dir, "dir", s.Dir, "state of this host's members, one job in each `DIR` (default: .phalanx/JOB)")
	f.StringVar(&s.Store, "store", s.Store, "checkpoint store, a directory or `URL`: file:///DIR, s3://BUCKET/PREFIX (default: DIR/store)")
}

// ownMeaning is the annotation of a flag that only has the name of a setting.
const ownMeaning = "phalanx-own-meaning"

// OwnMeaning says that a flag of this verb is not the setting of its name: neither variables nor the file set it.
func OwnMeaning(f *pflag.FlagSet, name string) {
	if err := f.SetAnnotation(name, ownMeaning, nil); err != nil {
		panic(err) // a flag that was not declared: a mistake in this program
	}
}

// Load completes flags that were not given from the environment and the file. environ has the form of os.Environ.
func Load(f *pflag.FlagSet, environ []string) error {
	return load(f, declared(), environ)
}

// declared are all keys that there are, whichever of them a verb has.
func declared() []string {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	Default().Flags(f)
	var names []string
	f.VisitAll(func(p *pflag.Flag) { names = append(names, p.Name) })
	return names
}

func load(f *pflag.FlagSet, names, environ []string) error {
	given := map[string]bool{}
	f.Visit(func(p *pflag.Flag) { given[p.Name] = true })
	for _, name := range names {
		variable := Variable(name)
		i := slices.IndexFunc(environ, func(e string) bool { return strings.HasPrefix(e, variable+"=") })
		if i < 0 || given[name] || !takes(f, name) {
			continue
		}
		value := environ[i][len(variable)+1:]
		if err := f.Set(name, value); err != nil {
			return usage("see phalanx run --help", "%s=%s: %w", variable, value, plain(err))
		}
		given[name] = true
	}
	dir, _ := f.GetString("dir")
	path, values, err := readFile(dir)
	if err != nil {
		return err
	}
	keys := make([]string, len(names))
	for i, name := range names {
		keys[i] = strings.ReplaceAll(name, "-", "_")
	}
	sorted := make([]string, 0, len(values))
	for key := range values {
		sorted = append(sorted, key)
	}
	slices.Sort(sorted)
	for _, key := range sorted {
		i := slices.Index(keys, key)
		if i < 0 {
			return usage(nearest.Suggest(key, keys), "%s: unknown key %q", path, key)
		}
		if given[names[i]] || !takes(f, names[i]) {
			continue
		}
		text, err := tomlText(values[key])
		if err == nil {
			err = plain(f.Set(names[i], text))
		}
		if err != nil {
			return usage("see phalanx run --help", "%s: %s: %w", path, key, err)
		}
	}
	return nil
}

// takes reports whether a flag is declared and is the setting of its name.
func takes(f *pflag.FlagSet, name string) bool {
	p := f.Lookup(name)
	if p == nil {
		return false
	}
	_, own := p.Annotations[ownMeaning]
	return !own
}

// plain says what a value must be, without the flag's name and the parser's.
func plain(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	switch kind := invalid.GetFlag().Value.Type(); kind {
	case "int", "uint64":
		return fmt.Errorf("%q is no number", invalid.GetValue())
	case "bool":
		return fmt.Errorf("%q is neither true nor false", invalid.GetValue())
	}
	return invalid.Unwrap()
}

// FlagError is an error of parsing flags in the words of this program.
func FlagError(err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		return fmt.Errorf("--%s: %w", invalid.GetFlag().Name, plain(err))
	}
	return err
}

// Variable is the environment variable of a flag.
func Variable(name string) string {
	return "PHALANX_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// readFile reads the configuration file of a job's directory, or else of the working directory. There need be none.
func readFile(dir string) (string, map[string]any, error) {
	for _, path := range []string{filepath.Join(dir, FileName), FileName} {
		if path == FileName && dir != "" && path == filepath.Join(dir, FileName) {
			break
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if errors.Is(err, unix.ENOTDIR) {
			return path, nil, usage("name a directory with --dir; it is made when it is not there", "--dir %s: it is a file, or below one", dir)
		}
		if err != nil {
			return path, nil, fmt.Errorf("read configuration: %w", err)
		}
		var values map[string]any
		if err := toml.Unmarshal(b, &values); err != nil {
			where := path
			var d *toml.DecodeError
			if errors.As(err, &d) {
				line, _ := d.Position()
				where = fmt.Sprintf("%s:%d", path, line)
			}
			return path, nil, usage("it is TOML, one key = value a line", "%s: %w", where, err)
		}
		return path, values, nil
	}
	return "", nil, nil
}

// tomlText is the text that a flag takes for a value of the file.
func tomlText(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case bool:
		return strconv.FormatBool(v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case []any:
		words := make([]string, len(v))
		for i, e := range v {
			s, ok := e.(string)
			if !ok {
				return "", errors.New("a list holds strings")
			}
			words[i] = s
		}
		return strings.Join(words, ","), nil
	}
	return "", fmt.Errorf("a value of type %T has no place here; give a string, a number, true or false", v)
}

// maxHosts is more than any job has, and few enough to be multiplied.
const maxHosts = 1 << 20

// hosts is the value of --nnodes.
type hosts Settings

func (h *hosts) String() string { return fmt.Sprintf("%d:%d", h.MinHosts, h.MaxHosts) }
func (h *hosts) Type() string   { return "MIN:MAX" }

func (h *hosts) Set(text string) error {
	low, high, ranged := strings.Cut(text, ":")
	if !ranged {
		high = low
	}
	lo, err1 := strconv.Atoi(low)
	hi, err2 := strconv.Atoi(high)
	if err1 != nil || err2 != nil || lo < 1 || hi < lo || hi > maxHosts {
		return fmt.Errorf("%q: give MIN:MAX hosts with 1 ≤ MIN ≤ MAX ≤ %d", text, maxHosts)
	}
	h.MinHosts, h.MaxHosts = lo, hi
	return nil
}
