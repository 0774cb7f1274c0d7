// SPDX-License-Identifier: Apache-2.0

package main

// reasons say why a part of a missed aim cannot go, by the aim's key and the part's name. A part without a reason is shown
// with an empty one.
var reasons = map[string]map[string]string{
	"trainer": ofChange,
	"spare":   ofChange,
	"both":    ofChange,
	"daemon":  ofRestart,
	"leader":  ofRestart,
	"protocol": {
		"begin":                        "reads the page; no message",
		"vote → known to be committed": "the trainer wakes its daemon, the daemons of the host each other, the daemon its trainer: with more processes than cores each of these waits for a processor",
		"apply":                        "one word on the page",
	},
	"cpu": {
		"a second with hardly any step": "by profile a third is Go's scheduler, which asks for the processor that the loop holds (0020 says what holding it saves), a quarter Raft's heartbeats and their TLS, an eighth the tick that looks for what nobody tells; fewer of them would find a silent leader, or a stopped trainer, later",
		"a second's steps":              "three wake-ups a step, by the kernel's scheduler and the Go runtime's",
	},
}

// ofChange is about the parts of a change of the world.
var ofChange = map[string]string{
	"detect":     "the kernel marks the pulse before it unmaps the process's memory; the daemon then waits for a processor",
	"tell":       "one message to the leader, which asks at once; nobody waits for a timeout",
	"seal":       "one round trip to every living member; its daemon may have to wait for a processor behind a trainer",
	"agree":      "one log entry, synced to disk by the leader and by one more voter, then pushed to all",
	"form":       "ranks revoke what runs and take their new seats; connections and mappings of survivors are kept",
	"heal":       "nothing for survivors, who hold the state already; a newcomer copies it from them",
	"first step": "the step itself",
	"first step beyond one of the smaller world": "the step that was interrupted is computed anew by fewer ranks, beside the start of the killed trainer's successor",
}

// ofRestart is about the parts of a daemon's replacement.
var ofRestart = map[string]string{
	"kill → its successor is started": "the kernel ends the daemon and tells phalanx run, which starts the successor at once",
	"→ the next step is committed":    "the successor reads its log, joins the others and goes on beside its trainer; then the step itself",
}

// Why is the reason for a part.
func (a aim) Why(part string) string { return reasons[a.Key][part] }

// Missed are the aims that are not met and whose parts are known.
func (r *results) Missed() (out []aim) {
	for _, a := range r.Aims {
		if !a.Met() {
			out = append(out, a)
		}
	}
	return out
}
