// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"phalanx/ckpt/s3/s3test"
)

// TestBuckets: the verbs that read and write checkpoints do so in buckets as well.
func TestBuckets(t *testing.T) {
	server := s3test.NewServer(t, false)
	for name, value := range server.Env(t) {
		t.Setenv(name, value)
	}
	at := func(path string) string { return server.StoreURL("some/" + path) }
	testVerbsIn(t, at)
}

// testVerbsIn goes through the verbs with paths that at makes URLs of.
func testVerbsIn(t *testing.T, at func(string) string) {
	dir := t.TempDir()
	for _, c := range []struct {
		code int
		want string // in stdout, or in stderr when the code is not 0
		args []string
	}{
		{0, `2 checkpoints, 12 objects copied`, []string{"copy", "../../ckpt/testdata/golden-raw-v1/job", at("store/job")}},
		{0, `0 objects copied with 0 bytes, 12 there already`, []string{"copy", "../../ckpt/testdata/golden-raw-v1/job", at("store/job")}},
		{0, `step=200 folder=job/step-200-g5-a2.1`, []string{"latest", "--store", at("store"), "--job", "job"}},
		{0, `(?m)^2 +200 .* published`, []string{"ls", "--store", at("store"), "--job", "job"}},
		{0, `checkpoint 2: step 200`, []string{"inspect", at("store/job")}},
		{0, `checkpoint 1: step 100`, []string{"inspect", at("store/job/step-100-g4-a2.0")}},
		{0, ` ok\n$`, []string{"verify", at("store/job")}},
		{0, ` level=head ok\n`, []string{"verify", "--all", "--level", "head", "--store", at("store"), "--job", "job"}},
		{0, `4 equal, 0 differ`, []string{"diff", at("store/job"), "../../ckpt/testdata/golden-raw-v1/job"}},
		{0, `4 tensors`, []string{"restore", "latest", filepath.Join(dir, "restored"), "--store", at("store"), "--job", "job"}},
		{0, `4 tensors`, []string{"convert", filepath.Join(dir, "restored"), at("dcp"), "--only", "*"}},
		{0, `dcp: 4 tensors`, []string{"inspect", at("dcp")}},
		{2, `something is there already`, []string{"convert", filepath.Join(dir, "restored"), at("dcp")}},
		{0, `3 objects copied`, []string{"copy", "../../ckpt/dcp/testdata/dcp-2.15/d2", at("pytorch")}},
		{0, ` ok\n$`, []string{"verify", at("pytorch")}},
		{0, `(?m)^m.w0 +f32 +\[10 4\] +0 +39 +19.5 `, []string{"inspect", at("pytorch"), "--stats"}},
		{0, `NUMPY`, []string{"dump", at("pytorch"), "m.w0"}},
		{0, `format safetensors`, []string{"convert", at("pytorch"), at("model"), "--to", "safetensors", "--only", "m.*", "--shard-size", "300B"}},
		{0, `safetensors: 9 tensors`, []string{"inspect", at("model")}},
		{0, `9 tensors`, []string{"convert", at("model"), at("one"), "--to", "safetensors"}},
		{0, `safetensors: 9 tensors`, []string{"inspect", at("one/model.safetensors")}},
		{0, ` 0 differ, .* by reading`, []string{"diff", at("model"), "../../ckpt/dcp/testdata/dcp-2.15/d2", "--keys", "m.*"}},
		{2, `would look whole`, []string{"copy", unmarked(t), at("unmarked")}},
		{3, `holds nothing`, []string{"inspect", at("nowhere")}},
		{8, `in \d+ folders below it`, []string{"inspect", at("")}},
	} {
		var out, errs bytes.Buffer
		code := execute(context.Background(), append([]string{"ckpt"}, c.args...), app{&out, &errs, nil})
		said := out.String()
		if c.code != 0 {
			said = errs.String()
		}
		if code != c.code || !regexp.MustCompile(c.want).MatchString(said) {
			t.Fatalf("ckpt %v: exit code %d, want %d with %s:\n%s%s", c.args, code, c.code, c.want, out.String(), errs.String())
		}
	}
}

// unmarked are two files of safetensors whose names do not say that they are two.
func unmarked(t *testing.T) string {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		head := `{"` + name + `":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`
		b := append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...)
		if err := os.WriteFile(filepath.Join(dir, name+".safetensors"), append(b, 7), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestPlaceInABucket: the place that answers give is one that verbs take.
func TestPlaceInABucket(t *testing.T) {
	server := s3test.NewServer(t, false)
	for name, value := range server.Env(t) {
		t.Setenv(name, value)
	}
	store := server.StoreURL("some/store")
	call := func(args ...string) []byte {
		var out, errs bytes.Buffer
		if code := execute(context.Background(), append([]string{"ckpt"}, args...), app{&out, &errs, nil}); code != 0 {
			t.Fatalf("ckpt %v: exit code %d\n%s%s", args, code, out.String(), errs.String())
		}
		return out.Bytes()
	}
	call("copy", "../../ckpt/testdata/golden-raw-v1/job", server.StoreURL("some/store/job"))
	for _, ref := range []string{"latest", server.StoreURL("some/store/job"), server.StoreURL("some/store/job/step-200-g5-a2.1")} {
		var first, again struct {
			Place  string `json:"place"`
			Number int    `json:"number"`
		}
		if err := json.Unmarshal(call("inspect", ref, "--json", "--store", store, "--job", "job"), &first); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(call("inspect", first.Place, "--json"), &again); err != nil || again.Number != 2 || first.Number != 2 {
			t.Errorf("%s at %s: %v, checkpoint %d", ref, first.Place, err, again.Number)
		}
	}
}
