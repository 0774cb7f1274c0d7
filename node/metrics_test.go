// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"phalanx/ckpt/storewrap"
	"phalanx/elastic"
)

// TestMetricsAreThoseOfTheDocument compares what is served with docs/naming.md, in both directions.
func TestMetricsAreThoseOfTheDocument(t *testing.T) {
	m := newMeters("job", "a/0", func() *Status { return &Status{Generation: 7} })
	before := elastic.NewState()
	after := *before
	after.World.Generation.Number, after.Activated = 1, true
	after.Transitions = []elastic.Transition{{Seconds: &elastic.Seconds{Seal: .5}}}
	m.transition(before, &after)
	m.healed.WithLabelValues("read").Add(1)
	m.evidence.WithLabelValues("asked").Inc()
	m.Observe(storewrap.Sample{Verb: storewrap.Get, Bytes: 1})
	w := httptest.NewRecorder()
	m.handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	served := map[string]bool{}
	for _, line := range strings.Split(w.Body.String(), "\n") {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
			served[strings.Fields(name)[0]] = true
		}
	}
	doc, err := os.ReadFile("../docs/naming.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile("`(phalanx_[a-z_]+)`").FindAllStringSubmatch(string(doc), -1) {
		if strings.HasSuffix(name[1], "_") {
			continue // the prefix itself
		}
		if !served[name[1]] {
			t.Errorf("docs/naming.md names %s, which is not served", name[1])
		}
		delete(served, name[1])
	}
	for _, name := range []string{"go_goroutines", "process_open_fds", "process_resident_memory_bytes"} {
		if !served[name] {
			t.Errorf("%s of the process is not served", name)
		}
	}
	for name := range served {
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue // named by the Prometheus client
		}
		t.Errorf("%s is served and not in docs/naming.md", name)
	}
	if !strings.Contains(w.Body.String(), `phalanx_transition_duration_seconds_sum{job="job",member="a/0",part="seal"} 0.5`) {
		t.Error("the parts of a transition are not observed")
	}
}
