// SPDX-License-Identifier: Apache-2.0

//go:build s3

package intake

import (
	"testing"

	"phalanx/ckpt"
	"phalanx/ckpt/open"
	"phalanx/ckpt/s3/s3test"
)

// TestGatewayIntake: what programs hand over is published in a bucket of a real server, read back, and fenced there.
func TestGatewayIntake(t *testing.T) {
	g := s3test.StartGateway(t, false)
	getenv := func(name string) string { return g.Env()[name] }
	s, err := open.Store(t.Context(), g.StoreURL("run"), open.Write, open.Options{Getenv: getenv})
	if err != nil {
		t.Fatal(err)
	}
	c := serve(t, &Service{Store: s, Job: "job"})
	a := c.saved(7)
	_, b := c.raw("read", object{"attempt": a.Attempt, "boxes": []object{{"name": "w", "offset": []int{0, 0}, "shape": []int{6, 4}}}, "values": []string{"v"}})
	if data, failure := frames(t, b); failure != nil || len(data) != 2 || string(data[0]) != string(count(96)) {
		t.Errorf("%v, %+v", data, failure)
	}
	if kind, words := c.ask("begin", object{"step": 7}, nil); kind != "fenced" {
		t.Errorf("%s: %s", kind, words)
	}
	cp, err := ckpt.OpenLatest(t.Context(), s, "job")
	if err != nil {
		t.Fatal(err)
	}
	if report, err := cp.VerifyAll(t.Context(), nil); err != nil || !report.OK() || !cp.Commit.Fenced {
		t.Errorf("%v, %v, fenced %v", err, report.Err(), cp.Commit.Fenced)
	}
}
