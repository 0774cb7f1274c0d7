// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"strings"
	"testing"

	"phalanx/elastic"
)

func usable() Config {
	return Config{Job: "j", Dir: "/d", Host: "h", Policy: elastic.Policy{Want: 2, Min: 1}, Bind: "127.0.0.1", Keep: 1, Command: []string{"x"}, LocalSize: 2, Log: quiet()}
}

// Every refusal names the flag that mends it.
func TestConfigNamesWhatIsWrong(t *testing.T) {
	c := usable()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		change func(*Config)
		flag   string
	}{
		"no job":                {func(c *Config) { c.Job = "" }, "--job"},
		"a job with a slash":    {func(c *Config) { c.Job = "a/b" }, "--job"},
		"no directory":          {func(c *Config) { c.Dir = "" }, "--dir"},
		"a relative one":        {func(c *Config) { c.Dir = "d" }, "--dir"},
		"no host":               {func(c *Config) { c.Host = "" }, "--host"},
		"a host with a slash":   {func(c *Config) { c.Host = "a/b" }, "--host"},
		"no command":            {func(c *Config) { c.Command = nil }, "CMD"},
		"nobody wanted":         {func(c *Config) { c.Policy.Want = 0 }, "--nproc"},
		"no minimum":            {func(c *Config) { c.Policy.Min = 0 }, "--min"},
		"a minimum too large":   {func(c *Config) { c.Policy.Min = 3 }, "--min"},
		"no address":            {func(c *Config) { c.Bind = "" }, "--bind"},
		"a name for an address": {func(c *Config) { c.Bind = "localhost" }, "--bind"},
		"no members":            {func(c *Config) { c.LocalSize = 0 }, "--nproc"},
		"too many members":      {func(c *Config) { c.LocalSize = MaxLocal + 1 }, "--nproc"},
		"one beyond them":       {func(c *Config) { c.Index = 2 }, "--nproc"},
		"nothing kept":          {func(c *Config) { c.Keep = 0 }, "--keep"},
	} {
		c := usable()
		x.change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), x.flag) {
			t.Errorf("%s: %v, want %s named", name, err, x.flag)
		}
	}
	bad := usable()
	bad.Job = ""
	o, err := Run(t.Context(), bad)
	var p *Problem
	if o.Code != CodeUsage || !errors.As(err, &p) || p.Code != CodeUsage {
		t.Errorf("run: %+v, %v", o, err)
	}
}

func TestProblemsSayWhatToDoNext(t *testing.T) {
	cause := errors.New("cause")
	p := &Problem{CodeFailed, cause, "mend it"}
	if p.Error() != "cause; mend it" || !errors.Is(p, cause) {
		t.Errorf("%q", p)
	}
	if p.Hint = ""; p.Error() != "cause" {
		t.Errorf("%q", p)
	}
}
