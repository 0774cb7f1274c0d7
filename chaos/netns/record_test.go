// SPDX-License-Identifier: Apache-2.0

package netns_test

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"phalanx"
	"phalanx/elastic"
)

// applied is one step in the record of a trainer.
type applied struct {
	host, generation     string
	step                 phalanx.Step
	gradient, parameters string
	pid                  int
}

func (a applied) String() string {
	return fmt.Sprintf("step %d of generation %s on host %s (pid %d, parameters %s)", a.step, a.generation, a.host, a.pid, a.parameters)
}

// records reads what the trainers of all hosts have noted, in the order of each file. A last line without its end was cut by
// the end of its trainer.
func records(c *cluster) ([]applied, error) {
	var out []applied
	for _, h := range c.hosts {
		b, err := os.ReadFile(c.recorded(h))
		if err != nil {
			return nil, fmt.Errorf("the record of host %s: %w", h.Name, err)
		}
		for line := range strings.Lines(string(b)) {
			a := applied{host: h.Name}
			if _, err := fmt.Sscanf(line, "step=%d generation=%s gradient=%s parameters=%s pid=%d\n", &a.step, &a.generation, &a.gradient, &a.parameters, &a.pid); err != nil {
				return nil, fmt.Errorf("the record of host %s: %q: %w", h.Name, line, err)
			}
			out = append(out, a)
		}
	}
	return out, nil
}

// judgeRecords checks the trainers' own records against each other and against the history: each step was trained by one world,
// with one result, in a generation whose steps include it; no trainer took a step twice; and no step is missing.
func judgeRecords(c *cluster, history []elastic.Transition) error {
	all, err := records(c)
	if err != nil {
		return err
	}
	return errors.Join(judge(all, history, c.steps), judgeEnd(all, c.steps, alone(c.t, c.steps)))
}

func judge(all []applied, history []elastic.Transition, steps int) error {
	var errs []error
	first := map[phalanx.Step]applied{}
	newest := map[int]applied{}
	for _, a := range all {
		if b, ok := first[a.step]; !ok {
			first[a.step] = a
		} else if a.generation != b.generation || a.gradient != b.gradient || a.parameters != b.parameters {
			errs = append(errs, fmt.Errorf("two worlds trained one step: %s and %s", a, b))
		}
		if b, ok := newest[a.pid]; ok && a.step <= b.step {
			errs = append(errs, fmt.Errorf("one trainer took %s after %s", a, b))
		}
		newest[a.pid] = a
		if err := inGeneration(a, history); err != nil {
			errs = append(errs, err)
		}
	}
	for step := phalanx.Step(1); step <= phalanx.Step(steps); step++ {
		if _, ok := first[step]; !ok {
			errs = append(errs, fmt.Errorf("nobody applied step %d", step))
		}
	}
	return errors.Join(errs...)
}

// inGeneration checks that a step is above the one that its generation began at and not above the one that the next began at.
func inGeneration(a applied, history []elastic.Transition) error {
	for i, tr := range history {
		if tr.Generation.String() != a.generation {
			continue
		}
		if a.step <= tr.ResumeStep {
			return fmt.Errorf("%s: the generation began at step %d", a, tr.ResumeStep)
		}
		if i+1 < len(history) && a.step > history[i+1].ResumeStep {
			return fmt.Errorf("%s: the others left it at step %d", a, history[i+1].ResumeStep)
		}
		return nil
	}
	return fmt.Errorf("%s: the generation is not in the history", a)
}

func judgeEnd(all []applied, steps int, want string) error {
	for _, a := range all {
		if a.step == phalanx.Step(steps) && a.parameters != want {
			return fmt.Errorf("%s: an undisturbed run ends with %s", a, want)
		}
	}
	return nil
}
