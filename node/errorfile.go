// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"phalanx"
)

const (
	// maxErrorFile is more than any traceback.
	maxErrorFile = 1 << 20
	// maxCause is how much of a message is told; the file and the output have the rest.
	maxCause = 300
)

// TrainerError is what a trainer wrote of its own end: the error file of torch.distributed.elastic's @record.
type TrainerError struct {
	Message string    // first line, as TYPE: TEXT
	Where   string    // FILE:LINE in FUNCTION of the innermost frame, "" when it is not known
	At      time.Time // in whole seconds; zero when it is not known
}

func (e TrainerError) String() string {
	if e.Where == "" {
		return e.Message
	}
	return e.Message + " (" + e.Where + ")"
}

// TrainerError is where a trainer writes why it failed, for one life of a member.
func (p Paths) TrainerError(i phalanx.Incarnate) string {
	return filepath.Join(p.Dir, "log", fmt.Sprintf("%s.%d.error.json", i.Member.FileName(), i.Incarnation))
}

// ReadTrainerError reads an error file. ok is false when there is none, or none that can be read.
func ReadTrainerError(path string) (e TrainerError, ok bool) {
	f, err := os.Open(path)
	if err != nil {
		return e, false
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxErrorFile))
	if err != nil {
		return e, false
	}
	return parseTrainerError(b)
}

// tracebackLine is a line of a Python traceback.
var tracebackLine = regexp.MustCompile(`(?m)^ *File "([^"\n]+)", line (\d+), in (.+)$`)

// parseTrainerError takes an error file apart. Its message is a text, or an object with a message and more.
func parseTrainerError(b []byte) (e TrainerError, ok bool) {
	var top struct {
		Message json.RawMessage `json:"message"`
	}
	if json.Unmarshal(b, &top) != nil {
		return e, false
	}
	var inner struct {
		Message string `json:"message"`
		Extra   struct {
			Stack     string          `json:"py_callstack"`
			Timestamp json.RawMessage `json:"timestamp"` // a number, mostly as text
		} `json:"extraInfo"`
	}
	text := ""
	if json.Unmarshal(top.Message, &text) == nil {
		inner.Message = text
	} else if json.Unmarshal(top.Message, &inner) != nil && inner.Message == "" {
		return e, false
	}
	e.Message, _, _ = strings.Cut(strings.TrimSpace(inner.Message), "\n")
	if e.Message = cut(strings.TrimSpace(e.Message), maxCause); e.Message == "" {
		return e, false
	}
	if frames := tracebackLine.FindAllStringSubmatch(inner.Extra.Stack, -1); len(frames) > 0 {
		last := frames[len(frames)-1]
		e.Where = cut(fmt.Sprintf("%s:%s in %s", last[1], last[2], strings.TrimSpace(last[3])), maxCause)
	}
	if n, err := strconv.ParseInt(strings.Trim(string(inner.Extra.Timestamp), `"`), 10, 40); err == nil && n > 0 {
		e.At = time.Unix(n, 0)
	}
	return e, true
}

// cut ends a text after at most n bytes, between characters.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// lastWords is how a trainer that failed explains its end: its error file if it wrote one, or the last line of its output.
func (d *Daemon) lastWords(n phalanx.Incarnation) string {
	who := phalanx.Incarnate{Member: d.me(), Incarnation: n}
	if e, ok := ReadTrainerError(d.paths.TrainerError(who)); ok {
		return ": " + e.String()
	}
	if line := lastLine(d.paths.TrainerLog(who)); line != "" {
		return ": " + line
	}
	return ""
}
