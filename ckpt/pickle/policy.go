// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Name names a global: an attribute of a Python module.
type Name struct{ Module, Name string }

// Policy says what a caller of Decode makes of what a pickle names.
type Policy struct {
	// Known are the globals that the caller understands.
	Known []Name
	// KnownIn adds the globals of a module for which it reports true; nil adds none.
	KnownIn func(module, name string) bool
	// Foreign lets globals that are not known through, as names and as classes of objects that are only looked past. They
	// are listed in Document.Foreign. Without it the first one is an error.
	Foreign bool
	// PersistentIDs lets values through that are kept outside of the pickle, as torch.save keeps storages.
	PersistentIDs bool
}

// Limits bounds what a pickle may cost. The zero value of a field means the default.
type Limits struct {
	Bytes  int64 // of the pickle; default 256 MiB
	Memory int64 // bytes of all values together; default 64 MiB and 20 for each byte of the pickle, an index of DCP takes up to 17
	Depth  int   // how deep values nest; default 128
	// Expansion bounds how many values one would visit who goes into shared ones again each time; a string of 64 bytes
	// more counts as one more. Default 65,536 and 2 for each byte of the pickle.
	Expansion int64
}

func (l Limits) withDefaults(length int64) Limits {
	if l.Bytes <= 0 {
		l.Bytes = 256 << 20
	}
	if l.Memory <= 0 {
		l.Memory = 64<<20 + 20*length
	}
	if l.Depth <= 0 {
		l.Depth = 128
	}
	if l.Expansion <= 0 {
		l.Expansion = 1<<16 + 2*length
	}
	return l
}

// ErrLimit is wrapped by the error for a pickle that costs more than Limits allows.
var ErrLimit = errors.New("beyond the limits for a pickle")

// UnknownGlobalError is returned for a pickle that names a class or function which is not in the policy.
type UnknownGlobalError struct {
	Module, Name string
	Offset       int64 // of the opcode, in the pickle
	Dangerous    bool  // Python would have given the file control over the machine
}

func (e *UnknownGlobalError) Error() string {
	if e.Dangerous {
		return fmt.Sprintf("the pickle names %s.%s at byte %d, with which it would run code of its own in Python: do not load this file with Python, find out who wrote it", e.Module, e.Name, e.Offset)
	}
	return fmt.Sprintf("the pickle names %s.%s at byte %d, which is not on the list of what may be read here", e.Module, e.Name, e.Offset)
}

// SyntaxError is returned for bytes that are not a pickle.
type SyntaxError struct {
	Offset int64 // of the opcode
	What   string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("not a pickle at byte %d: %s", e.Offset, e.What)
}

// Modules and functions of Python's standard library and of torch that give whoever names them control over a machine: over
// processes, files and sockets, by evaluating text, and by reaching further objects by name.
var (
	dangerousModules = []string{
		"os", "posix", "nt", "subprocess", "_posixsubprocess", "sys", "shutil", "socket", "_socket", "runpy", "importlib", "imp",
		"ctypes", "_ctypes", "pty", "commands", "popen2", "code", "codeop", "pdb", "bdb", "timeit", "profile", "cProfile",
		"trace", "pickle", "_pickle", "cPickle", "marshal", "webbrowser", "urllib", "http", "ftplib", "smtplib", "requests",
		"distutils", "pip", "ensurepip", "venv",
	}
	dangerousNames = []Name{
		{"builtins", "eval"}, {"builtins", "exec"}, {"builtins", "execfile"}, {"builtins", "compile"}, {"builtins", "open"},
		{"builtins", "__import__"}, {"builtins", "getattr"}, {"builtins", "setattr"}, {"builtins", "delattr"},
		{"builtins", "globals"}, {"builtins", "locals"}, {"builtins", "vars"}, {"builtins", "breakpoint"},
		{"builtins", "input"}, {"builtins", "map"}, {"builtins", "filter"}, {"builtins", "apply"},
		{"functools", "reduce"}, {"types", "FunctionType"}, {"types", "CodeType"}, {"io", "open"}, {"io", "open_code"},
		{"io", "FileIO"}, {"_io", "open"}, {"_io", "open_code"}, {"_io", "FileIO"}, {"operator", "attrgetter"},
		{"operator", "methodcaller"}, {"_operator", "attrgetter"}, {"_operator", "methodcaller"}, {"cloudpickle", "loads"},
		{"dill", "loads"}, {"torch", "load"}, {"torch.serialization", "load"}, {"torch.hub", "load"}, {"torch.jit", "load"},
		{"numpy.testing._private.utils", "runstring"},
	}
)

// Dangerous reports whether Python would give a pickle that names this global control over the machine. Such a file was not
// written by a program that saves a state. The list cannot be complete and nothing depends on it here, where no global is
// ever looked up: it is there so that such a file is not passed over in silence.
func Dangerous(module, name string) bool {
	if module == "__builtin__" { // what Python 2 calls builtins
		module = "builtins"
	}
	top, _, _ := strings.Cut(module, ".")
	return slices.Contains(dangerousModules, top) || slices.Contains(dangerousNames, Name{module, name}) ||
		module == "builtins" && strings.ContainsRune(name, '.')
}
