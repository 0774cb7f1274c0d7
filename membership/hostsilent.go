// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"phalanx"
)

// HostVerdict is what several observers' testimony about one host adds up to.
type HostVerdict uint8

// The verdicts on hosts. The zero value is Undecided.
const (
	// HostUndecided: too few observers, or too early. Probe again.
	HostUndecided HostVerdict = iota
	// HostAnswers: its kernel answered everyone who looked. A process there may be stopped; the host is not gone.
	HostAnswers
	// HostDisputed: it answers some and is silent to others: a broken path. Quarantine at most, never evict for it.
	HostDisputed
	// HostIsSilent: its kernel answered nobody, for long enough, and enough looked.
	HostIsSilent
)

func (v HostVerdict) String() string {
	switch v {
	case HostUndecided:
		return "undecided"
	case HostAnswers:
		return "answers"
	case HostDisputed:
		return "disputed"
	case HostIsSilent:
		return "silent"
	default:
		return fmt.Sprintf("host verdict(%d)", uint8(v))
	}
}

// HostObservation is one observer's testimony about one host.
type HostObservation struct {
	Observer phalanx.MemberID
	// LastHeard is when the host's kernel last gave a sign of life to this observer, by the judge's clock: the time of
	// judging minus the observer's own measure of its silence (AckState.SinceAck, or the arrival of data). Zero: never.
	LastHeard time.Time
	// Probe is the newest fresh connect, its Began by the judge's clock too.
	Probe ProbeResult
	// Lateness of the observer itself in the observed time (Lateness.Worst).
	Lateness time.Duration
}

// HostPolicy says how much silence and how many observers prove that a host is gone.
type HostPolicy struct {
	// Silence is how long the kernel must have been silent to each observer, in acknowledgements and to a fresh connect.
	Silence time.Duration
	// Observers is the number of other hosts that must agree. Observers of one host count once: they share a NIC.
	Observers int
	// MaxAge is the age beyond which a probe's end says nothing about now.
	MaxAge time.Duration
}

// DefaultHostPolicy wants 0.75 s of silence to two observers. With fewer other hosts than that, pass their number: on two
// hosts one observer is all there is, and it cannot tell its own cut from the other's death.
func DefaultHostPolicy() HostPolicy {
	return HostPolicy{Silence: 750 * time.Millisecond, Observers: 2, MaxAge: 2 * time.Second}
}

// Validate names what is wrong with the policy.
func (p HostPolicy) Validate() error {
	switch {
	case p.Silence < 600*time.Millisecond:
		return fmt.Errorf("host silence of %v: shorter ones are stalls, want at least 600ms", p.Silence)
	case p.Observers < 1:
		return fmt.Errorf("%d observers: want at least 1", p.Observers)
	case p.MaxAge < p.Silence:
		return fmt.Errorf("max age %v of a probe: want at least the silence, %v", p.MaxAge, p.Silence)
	}
	return nil
}

// sight is what one observer's testimony is worth.
type sight uint8

const (
	seesNothing sight = iota
	seesSilence
	seesLife
)

// JudgeHost combines testimony about a host into a verdict and says why. The host's own members are no observers of it;
// testimony of an observer that was late, whose probe failed on its own side, or is old, is left out. Of several
// observers on one host the one that sees life counts.
func JudgeHost(host string, observations []HostObservation, policy HostPolicy, now time.Time) (HostVerdict, string) {
	if err := policy.Validate(); err != nil {
		return HostUndecided, err.Error()
	}
	seen := map[string]sight{}
	words := map[string]string{}
	for _, o := range observations {
		from := o.Observer.Host()
		if from == host {
			continue
		}
		s, why := o.weigh(policy, now)
		if _, known := seen[from]; !known || s > seen[from] {
			seen[from], words[from] = s, why
		}
	}
	var alive, silent int
	var why []string
	for _, from := range slices.Sorted(maps.Keys(seen)) {
		switch seen[from] {
		case seesLife:
			alive++
		case seesSilence:
			silent++
		case seesNothing:
		}
		why = append(why, from+" "+words[from])
	}
	verdict := HostUndecided
	switch {
	case alive > 0 && silent > 0:
		verdict = HostDisputed
	case alive > 0:
		verdict = HostAnswers
	case silent >= policy.Observers:
		verdict = HostIsSilent
	}
	detail := cmp.Or(strings.Join(why, "; "), "nobody looked")
	return verdict, fmt.Sprintf("host %s %s: silent to %d of the %d wanted, answers %d: %s",
		host, verdict, silent, policy.Observers, alive, detail)
}

// weigh turns one testimony into what it is worth, with the reason.
func (o HostObservation) weigh(p HostPolicy, now time.Time) (sight, string) {
	heard := "never heard it"
	silence := p.Silence
	if !o.LastHeard.IsZero() {
		silence = max(0, now.Sub(o.LastHeard))
		heard = fmt.Sprintf("heard its kernel %v ago", silence.Round(time.Millisecond))
	}
	ended := o.Probe.Began.Add(o.Probe.Took)
	old := o.Probe.Began.IsZero() || now.Sub(ended) > p.MaxAge
	connect := fmt.Sprintf("connect %s after %v", o.Probe.Answer, o.Probe.Took.Round(time.Millisecond))

	switch {
	case silence < p.Silence:
		return seesLife, heard
	case old:
		return seesNothing, heard + ", has no fresh probe"
	case o.Probe.Answer.Alive() && now.Sub(ended) < p.Silence:
		return seesLife, connect
	case o.Probe.Answer.Alive():
		return seesNothing, fmt.Sprintf("%s, %v ago", connect, now.Sub(ended).Round(time.Millisecond))
	case o.Probe.Answer != AnswerSilent:
		return seesNothing, connect + ", which says nothing"
	case silence-o.Lateness < p.Silence && o.Lateness > 0:
		return seesNothing, fmt.Sprintf("was late by %v itself", o.Lateness.Round(time.Millisecond))
	case now.Sub(o.Probe.Began)-max(0, o.Lateness) < p.Silence:
		return seesNothing, connect + ", too early to tell"
	default:
		return seesSilence, heard + ", " + connect
	}
}

// HostSilentEvidence makes the evidence against each member of a silent host, ordered by member. The caller is the judge
// and answers for it with its own id and clock.
func HostSilentEvidence(members []phalanx.Incarnate, why string, judge phalanx.MemberID, now time.Time) []phalanx.Evidence {
	evidence := make([]phalanx.Evidence, 0, len(members))
	for _, m := range members {
		evidence = append(evidence, phalanx.Evidence{
			Kind: phalanx.HostSilent, About: m, Source: judge, UnixNS: now.UnixNano(), Detail: why,
		})
	}
	slices.SortFunc(evidence, func(a, b phalanx.Evidence) int { return phalanx.CompareMemberIDs(a.About.Member, b.About.Member) })
	return evidence
}
