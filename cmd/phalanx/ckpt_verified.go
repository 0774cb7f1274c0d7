// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"phalanx/ckpt"
	"phalanx/ckpt/view"
	"phalanx/node"
)

// verified is the answer of verify.
type verified struct {
	*found                   // of a published one
	Place    string          `json:"place"`
	Format   view.Format     `json:"format"`
	Level    ckpt.Level      `json:"level"`
	OK       bool            `json:"ok"`
	Chunks   int             `json:"chunks"` // looked at; objects for level head
	Read     int64           `json:"read_bytes"`
	Left     int             `json:"left_chunks"` // that are still to be looked at
	Unsummed int             `json:"unsummed_chunks"`
	Damage   []damage        `json:"damage"`
	Tensors  []damagedTensor `json:"tensors"`
	Problems []numbered      `json:"problems"` // other numbers that cannot be restored, without an argument
}

// numbered is what is wrong with a number beside the one that is verified.
type numbered struct {
	Number uint64 `json:"number"`
	Error  string `json:"error"`
}

type damage struct {
	Object     string `json:"object"`
	At         int64  `json:"at"`
	Length     int64  `json:"size_bytes"`
	Coordinate int    `json:"coordinate"`
	Tensor     string `json:"tensor"`
	Error      string `json:"error"`
}

type damagedTensor struct {
	Coordinate int    `json:"coordinate"`
	Name       string `json:"name"`
	Chunks     int    `json:"chunks"` // damaged ones; 0: all chunks verify, the digest of the tensor does not
}

// name is how a checkpoint is called in lines.
func (x *verified) name() string {
	if x.found != nil {
		return fmt.Sprintf("step=%d folder=%s", x.Step, x.Folder)
	}
	return fmt.Sprintf("place=%s format=%s", x.Place, x.Format)
}

// printFindings prints what was found, on one line when all is well.
func (r *verifyVerb) printFindings(x *verified) {
	for _, d := range x.Damage {
		say(r.stdout, "damaged object %s: %s\n", d.Object, d.Error)
	}
	for _, t := range x.Tensors {
		how := fmt.Sprintf("%d damaged chunks", t.Chunks)
		if t.Chunks == 0 {
			how = "its digest differs"
		}
		say(r.stdout, "damaged tensor %s of coordinate %d: %s\n", t.Name, t.Coordinate, how)
	}
	result := "ok"
	if !x.OK {
		result = "damaged"
	}
	line := fmt.Sprintf("%s chunks=%d bytes=%d %s", x.name(), x.Chunks, x.Read, result)
	if x.Level != ckpt.LevelData {
		line = fmt.Sprintf("%s level=%s %s", x.name(), x.Level, result)
	}
	if x.Unsummed > 0 {
		line += fmt.Sprintf(" (%d without a checksum)", x.Unsummed)
	}
	if x.Left > 0 {
		line += fmt.Sprintf(" (%d chunks are left)", x.Left)
	}
	say(r.stdout, "%s\n", line)
}

// printVerified prints the answer for people; damage is an error.
func (r *verifyVerb) printVerified(x *verified) error {
	for _, p := range x.Problems {
		say(r.stdout, "damaged checkpoint %d: %s\n", p.Number, p.Error)
	}
	damaged := len(x.Damage) > 0 || len(x.Tensors) > 0
	if len(x.Problems) > 0 && !damaged {
		return problem(node.CodeIntegrity, "phalanx ckpt verify STEP checks one by itself", "%d checkpoints are damaged or incomplete; that of step %d (number %d) is the newest whole one",
			len(x.Problems), x.Step, x.Number)
	}
	r.printFindings(x)
	if !damaged {
		return nil
	}
	what := "checkpoint at " + x.Place
	if x.found != nil {
		what = fmt.Sprintf("checkpoint of step %d", x.Step)
	}
	return problem(node.CodeIntegrity, "restore another one; phalanx ckpt ls lists them", "%s is damaged: %d of %d chunks, %d tensors", what, len(x.Damage), x.Chunks, len(x.Tensors))
}
