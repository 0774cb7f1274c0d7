// SPDX-License-Identifier: Apache-2.0

package view

import "testing"

// TestSplit: parameters of a URL belong to the store, whatever slashes are in them.
func TestSplit(t *testing.T) {
	for place, want := range map[string][2]string{
		"/a/b": {"/a", "b"},
		"/a":   {"/", "a"},
		"s3://bucket/run/job?endpoint=http://h:1/&x=a/b": {"s3://bucket/run?endpoint=http://h:1/&x=a/b", "job"},
		"s3://bucket/job?endpoint=http://h":              {"s3://bucket?endpoint=http://h", "job"},
		"s3://bucket?endpoint=http://h":                  {"s3://bucket?endpoint=http://h", ""},
		"s3://bucket":                                    {"s3://bucket", ""},
		"file:///a":                                      {"file:///a", ""},
	} {
		if parent, base := Split(place); parent != want[0] || base != want[1] {
			t.Errorf("%s is %q and %q, want %q", place, parent, base, want)
		}
	}
}
