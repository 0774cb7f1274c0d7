// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"phalanx"
	"phalanx/ckpt/open"
	"phalanx/client/wire"
	"phalanx/elastic"
	"phalanx/node"
)

// Settings is what `phalanx run` was told, complete: DIR/run.json. No secret is in it.
type Settings struct {
	Version      string   `json:"version"`
	Job          string   `json:"job"`
	Dir          string   `json:"dir"`   // absolute
	Store        string   `json:"store"` // absolute path, or URL
	Host         string   `json:"host"`
	Nproc        int      `json:"nproc"`
	MinHosts     int      `json:"min_hosts"`
	MaxHosts     int      `json:"max_hosts"`
	Min          int      `json:"min"` // members, at least; 0 until Complete
	Spares       int      `json:"spares"`
	Warm         int      `json:"warm,omitempty"`
	Join         []string `json:"join,omitempty"`
	Bind         string   `json:"bind,omitempty"` // as asked: ADDR or ADDR:PORT
	Advertise    string   `json:"advertise,omitempty"`
	Interface    string   `json:"interface,omitempty"`
	Address      string   `json:"address"` // IP that is bound, found at the start
	Port         int      `json:"port,omitempty"`
	KeyFile      string   `json:"key_file,omitempty"` // "" is DIR/key or the environment
	SaveEvery    Interval `json:"save_every"`
	Keep         int      `json:"keep"`
	KeepEvery    uint64   `json:"keep_every,omitempty"`
	KeepTime     Duration `json:"keep_time"`
	GCGrace      Duration `json:"gc_grace"`
	KeepLogs     int      `json:"keep_logs"`
	LogDir       string   `json:"log_dir,omitempty"` // absolute
	Role         string   `json:"role_name,omitempty"`
	Resume       string   `json:"resume"`
	WarmStart    string   `json:"warm_start,omitempty"` // absolute path, or URL
	Only         []string `json:"only,omitempty"`
	Rename       []string `json:"rename,omitempty"`
	Strip        bool     `json:"strip_prefixes,omitempty"`
	Cast         bool     `json:"cast,omitempty"`
	Partial      bool     `json:"partial,omitempty"`
	MaxRestarts  int      `json:"max_restarts"`
	HangTimeout  Duration `json:"hang_timeout"`
	StartTimeout Duration `json:"start_timeout"`
	Grace        Duration `json:"grace"`
	HealthCheck  string   `json:"health_check,omitempty"`
	Plain        bool     `json:"plain,omitempty"`
	Command      []string `json:"command"`

	SaveFailure  SaveFailure `json:"save_failure"`
	Slabs        int         `json:"slabs"`
	MaxHostBytes Bytes       `json:"max_host_bytes"`
	CopyRate     Bytes       `json:"copy_rate"`
}

// Default is what holds without any flag.
func Default() *Settings {
	return &Settings{
		Nproc: 1, MinHosts: 1, MaxHosts: 1,
		SaveEvery: Interval{Every: 10 * time.Minute}, Keep: 3, GCGrace: Duration(10 * time.Minute), KeepLogs: 16, Resume: "auto", MaxRestarts: 3,
		CopyRate: 1 << 30, Slabs: 1,
		HangTimeout: Duration(10 * time.Minute), StartTimeout: Duration(10 * time.Minute), Grace: Duration(30 * time.Second),
	}
}

// LocalSize is the number of members on this host, spares included.
func (s *Settings) LocalSize() int { return s.Nproc + s.Spares }

// Member is the member with a local index.
func (s *Settings) Member(index int) phalanx.MemberID { return phalanx.NewMemberID(s.Host, index) }

// Policy is the size of the world that the settings ask for.
func (s *Settings) Policy() elastic.Policy {
	return elastic.Policy{Want: s.MaxHosts * s.Nproc, Min: s.Min}
}

// Complete fills in what follows from other settings and from the machine: directory, job, store, host, minimum. It touches
// no file.
func (s *Settings) Complete() error {
	if err := s.completeDir(); err != nil {
		return err
	}
	s.Store = cmp.Or(s.Store, filepath.Join(s.Dir, "store"))
	var err error
	if s.Store, err = open.Clean(s.Store); err != nil {
		return node.StoreProblem(err)
	}
	if s.KeyFile != "" {
		if s.KeyFile, err = filepath.Abs(s.KeyFile); err != nil {
			return fmt.Errorf("key file: %w", err)
		}
	}
	if s.WarmStart != "" && !strings.Contains(s.WarmStart, "://") {
		if s.WarmStart, err = filepath.Abs(s.WarmStart); err != nil {
			return fmt.Errorf("checkpoint to begin with: %w", err)
		}
	}
	if s.LogDir != "" {
		if s.LogDir, err = filepath.Abs(s.LogDir); err != nil {
			return fmt.Errorf("directory for output: %w", err)
		}
	}
	if s.Host == "" {
		if s.Host, err = os.Hostname(); err != nil {
			return usage("give the name of this host with --host NAME", "host name: %w", err)
		}
	}
	if s.Min == 0 {
		// Fewer members than this cannot be on MIN hosts; for one host it is one member.
		s.Min = (s.MinHosts-1)*s.Nproc + 1
		if s.Plain { // a script of torchrun expects whole hosts
			s.Min = s.MinHosts * s.Nproc
		}
	}
	return nil
}

// completeDir finds the directory and the job's name: each follows from the other, both from the working directory.
func (s *Settings) completeDir() error {
	if s.Dir == "" {
		name := s.Job
		if name == "" {
			wd, err := os.Getwd()
			if err != nil {
				return fmt.Errorf("working directory: %w", err)
			}
			name = safeName(filepath.Base(wd))
		}
		s.Dir = filepath.Join(".phalanx", name)
	}
	dir, err := filepath.Abs(s.Dir)
	if err != nil {
		return fmt.Errorf("directory %s: %w", s.Dir, err)
	}
	s.Dir = dir
	s.Job = cmp.Or(s.Job, safeName(filepath.Base(dir)))
	return nil
}

// safeName makes any name one key element.
func safeName(name string) string {
	b := []byte(name)
	for i, c := range b {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.') {
			b[i] = '-'
		}
	}
	if name = strings.TrimLeft(string(b), ".-"); name == "" {
		return "job"
	}
	return name
}

// Validate reports the first setting that cannot be used, as a usage error. Addresses are checked where they are found.
func (s *Settings) Validate() error {
	switch {
	case s.Job != safeName(s.Job) || len(s.Job) > 200:
		return usage("use letters, digits, dots, dashes and underscores", "job name %q (--job)", s.Job)
	case !s.Member(0).Valid():
		return usage("use letters, digits, dots, dashes and underscores, at most 60", "host name %q (--host)", s.Host)
	case s.Nproc < 1:
		return usage("give at least 1", "--nproc %d", s.Nproc)
	case s.Spares < 0:
		return usage("give 0 or more", "--spares %d", s.Spares)
	case s.Nproc > node.MaxLocal || s.Spares > node.MaxLocal-s.Nproc:
		return usage("start the others on more hosts, or under another --host and --dir", "--nproc %d and --spares %d: a host can have %d members", s.Nproc, s.Spares, node.MaxLocal)
	case s.Warm > s.LocalSize():
		return usage("one for each member is enough", "--warm=%d: this host has %d members", s.Warm, s.LocalSize())
	case s.Keep < 1:
		return usage("keep at least one checkpoint", "--keep %d", s.Keep)
	case s.KeepTime < 0 || s.GCGrace < 0:
		return usage("give a duration such as 24h, or 0", "--keep-time %s, --gc-grace %s", s.KeepTime.String(), s.GCGrace.String())
	case s.Slabs < 1 || s.Slabs > wire.MaxSlabs:
		return usage(fmt.Sprintf("give 1 or %d", wire.MaxSlabs), "--slabs %d", s.Slabs)
	case s.KeepLogs < 0:
		return usage("give 0 to keep all", "--keep-logs %d", s.KeepLogs)
	case s.MaxRestarts < 0:
		return usage("give 0 or more", "--max-restarts %d", s.MaxRestarts)
	case s.HangTimeout <= 0 || s.StartTimeout <= 0 || s.Grace <= 0:
		return usage("give a duration such as 30s", "--hang-timeout, --start-timeout and --grace must be above 0")
	case s.Min < 1 || s.Min > s.Policy().Want:
		return usage("the minimum is from 1 to the members of a full world, hosts × --nproc", "--min %d of %d members", s.Min, s.Policy().Want)
	case len(s.Command) == 0:
		return usage("phalanx run [flags] -- CMD", "no command for the trainers")
	case s.Warm == 1 && isNumber(s.Command[0]): // --warm 2 CMD
		return usage("write --warm="+s.Command[0], "command of the trainers: %s is a number", s.Command[0])
	}
	if err := s.validateWarmStart(); err != nil {
		return err
	}
	if s.Resume != "auto" && s.Resume != "never" {
		if _, err := strconv.ParseUint(s.Resume, 10, 64); err != nil {
			return usage("give auto, never or the step of a checkpoint; phalanx ckpt ls lists them", "--resume %q", s.Resume)
		}
	}
	return nil
}

func isNumber(s string) bool {
	_, err := strconv.Atoi(s)
	return err == nil
}

// File is where run leaves the settings for the daemons.
func File(dir string) string { return filepath.Join(dir, "run.json") }

// Write replaces DIR/run.json as a whole.
func (s *Settings) Write() error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode settings: %w", err)
	}
	partial := File(s.Dir) + ".new"
	if err := os.WriteFile(partial, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	if err := os.Rename(partial, File(s.Dir)); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return nil
}

// Read reads DIR/run.json. What an older release did not write has its default.
func Read(dir string) (*Settings, error) {
	b, err := os.ReadFile(File(dir))
	if err != nil {
		return nil, fmt.Errorf("read settings: %w", err)
	}
	s := Default()
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("read settings %s: %w", File(dir), err)
	}
	return s, nil
}

// Diff names the settings in which a new run differs from the one whose daemons are alive, "" when they agree. The version
// and the address that was found are not settings that anyone gave.
func (s *Settings) Diff(running *Settings) string {
	a, b := reflect.ValueOf(*running), reflect.ValueOf(*s)
	var d []string
	for i := range a.NumField() {
		name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("json"), ",")
		if slices.Contains([]string{"version", "address", "port"}, name) || reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			continue
		}
		if name == "command" {
			d = append(d, fmt.Sprintf("command is %s, running is %s", quote(s.Command), quote(running.Command)))
			continue
		}
		d = append(d, fmt.Sprintf("%s is %v, running with %v", name, b.Field(i).Interface(), a.Field(i).Interface()))
	}
	return strings.Join(d, "; ")
}

func quote(command []string) string {
	words := make([]string, len(command))
	for i, w := range command {
		if words[i] = w; w == "" || strings.ContainsAny(w, " \t\n'\"\\$") {
			words[i] = strconv.Quote(w)
		}
	}
	return strings.Join(words, " ")
}

// usage is an error in what was asked, exit code 2.
func usage(hint, format string, args ...any) error {
	return &node.Problem{Code: node.CodeUsage, Err: fmt.Errorf(format, args...), Hint: hint}
}

// Duration is a time.Duration that is text in JSON.
type Duration time.Duration

// String is the form that Set reads.
func (d *Duration) String() string { return time.Duration(*d).String() }

// Set parses a duration such as 30s.
func (d *Duration) Set(text string) error {
	v, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q is no duration; write one like 30s or 10m", text)
	}
	*d = Duration(v)
	return nil
}

// Type names the value in help texts.
func (d *Duration) Type() string { return "D" }

// MarshalText is for run.json.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (d *Duration) UnmarshalText(b []byte) error { return d.Set(string(b)) }

// Interval is a save interval: a number of steps, or a duration.
type Interval node.Interval

// String is the form that Set reads.
func (v *Interval) String() string {
	if v.Steps > 0 {
		return strconv.FormatUint(uint64(v.Steps), 10)
	}
	return v.Every.String()
}

// Set parses a number of steps or a duration.
func (v *Interval) Set(text string) error {
	if n, err := strconv.ParseUint(text, 10, 64); err == nil && n > 0 {
		*v = Interval{Steps: phalanx.Step(n)}
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return errors.New("give a number of steps, or a duration like 10m")
	}
	*v = Interval{Every: d}
	return nil
}

// Bytes is a number of bytes, as text with a unit.
type Bytes int64

// units are the powers of 1024 that a number of bytes may be given in.
var units = []string{"B", "KiB", "MiB", "GiB", "TiB"}

// String is the form that Set reads, in the largest unit that divides it.
func (b *Bytes) String() string {
	n, unit := int64(*b), 0
	for n > 0 && n%1024 == 0 && unit < len(units)-1 {
		n, unit = n/1024, unit+1
	}
	if unit == 0 {
		return strconv.FormatInt(n, 10)
	}
	return strconv.FormatInt(n, 10) + units[unit]
}

// Set parses a number of bytes such as 64GiB.
func (b *Bytes) Set(text string) error {
	digits := strings.TrimRight(text, "BKMGTi")
	unit := strings.TrimPrefix(text, digits)
	power := max(0, slices.Index(units, unit))
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || unit != "" && !slices.Contains(units, unit) || n > (1<<62)>>(10*power) {
		return fmt.Errorf("%q is no number of bytes; write one like 64GiB or 512MiB", text)
	}
	*b = Bytes(n << (10 * power))
	return nil
}

// Type names the value in help texts.
func (b *Bytes) Type() string { return "BYTES" }

// MarshalText is for run.json.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (b *Bytes) UnmarshalText(text []byte) error { return b.Set(string(text)) }

// SaveFailure is what becomes of the job when saves fail.
type SaveFailure node.SaveFailure

// String is the form that Set reads.
func (v *SaveFailure) String() string {
	switch {
	case v.After > 0:
		return "halt-after=" + strconv.Itoa(v.After)
	case v.Older > 0:
		return "halt-older=" + v.Older.String()
	}
	return "continue"
}

// Set parses continue, halt-after=N or halt-older=DURATION.
func (v *SaveFailure) Set(text string) error {
	word, value, _ := strings.Cut(text, "=")
	switch word {
	case "continue":
		if text == word {
			*v = SaveFailure{}
			return nil
		}
	case "halt-after":
		if n, err := strconv.Atoi(value); err == nil && n > 0 {
			*v = SaveFailure{After: n}
			return nil
		}
	case "halt-older":
		if d, err := time.ParseDuration(value); err == nil && d > 0 {
			*v = SaveFailure{Older: d}
			return nil
		}
	}
	return errors.New("give continue, halt-after=N with the number of saves in a row that may fail, or halt-older=DURATION with the age that the recovery point may reach")
}

// Type names the value in help texts.
func (v *SaveFailure) Type() string { return "POLICY" }

// MarshalText is for run.json.
func (v SaveFailure) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (v *SaveFailure) UnmarshalText(b []byte) error { return v.Set(string(b)) }

// Type names the value in help texts.
func (v *Interval) Type() string { return "STEPS|D" }

// MarshalText is for run.json.
func (v Interval) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (v *Interval) UnmarshalText(b []byte) error { return v.Set(string(b)) }
