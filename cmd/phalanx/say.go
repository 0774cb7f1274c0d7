// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"phalanx/ckpt"
)

// plain quotes what a terminal would obey or hide: control characters, line ends, marks that turn the direction of text, and bytes
// that are no UTF-8. Names of tensors, reasons of pins and the like come from files that anybody may have written.
func plain(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case strconv.IsPrint(r):
			b.WriteString(s[i : i+n])
		default:
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		i += n
	}
	return b.String()
}

// plainError is the text of an error on one line; several that were joined are divided by semicolons.
func plainError(err error) string { return plain(strings.ReplaceAll(err.Error(), "\n", "; ")) }

// tell is fmt.Fprintf for people: every text among the arguments is made plain, and the format alone lays them out. All tables and
// messages are printed by it.
func tell(w io.Writer, format string, args ...any) error {
	quoted := make([]any, len(args))
	for i, a := range args {
		quoted[i] = plainArg(a)
	}
	_, err := fmt.Fprintf(w, format, quoted...)
	return err
}

// say is tell where nothing is to be done about an error: stdout remembers it, and there is nobody to tell about one of stderr.
func say(w io.Writer, format string, args ...any) { _ = tell(w, format, args...) }

func plainArg(a any) any {
	switch a := a.(type) {
	case nil:
		return nil
	case error:
		return plainError(a)
	case []string:
		out := make([]string, len(a))
		for i, s := range a {
			out[i] = plain(s)
		}
		return out
	}
	v := reflect.ValueOf(a)
	switch s, ok := a.(fmt.Stringer); {
	case v.CanInt(), v.CanUint(), v.CanFloat(): // numbers hold no text of others, and may be wanted in digits
		return a
	case ok:
		return plain(s.String())
	case v.Kind() == reflect.String:
		return plain(v.String())
	}
	return a
}

// printDiff prints how two layouts differ, one difference on a line.
func printDiff(w io.Writer, d ckpt.LayoutDiff) {
	quoted := func(names []string) []string { return plainArg(names).([]string) }
	fmt.Fprintln(w, ckpt.LayoutDiff{Missing: quoted(d.Missing), Unexpected: quoted(d.Unexpected), Changed: quoted(d.Changed)}.String())
}

// answer is stdout: it remembers that a write failed, whoever made it. An answer that is not there is no success.
type answer struct {
	io.Writer
	err error
}

// isTerminal reports whether somebody looks at it.
func (a *answer) isTerminal() bool {
	f, ok := a.Writer.(*os.File)
	return ok && isTerminal(f)
}

func (a *answer) Write(p []byte) (int, error) {
	n, err := a.Writer.Write(p)
	if err != nil && a.err == nil {
		a.err = err
	}
	return n, err
}
