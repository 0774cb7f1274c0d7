// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"

	"phalanx"
	"phalanx/ckpt/peer"
)

// What each rank has of its own, such as the state of a random generator, differs between those who hold the same coordinate. It is
// never compared between them, and read from one alone.

// splitOwn lists the tensors that all ranks of a coordinate hold alike, and those that each has of its own.
func splitOwn(layout []phalanx.TensorInfo) (shared, own []int) {
	for i, t := range layout {
		if t.PerRank {
			own = append(own, i)
		} else {
			shared = append(shared, i)
		}
	}
	return shared, own
}

// fetchSome reads some tensors of a state, and puts their digests where they belong.
func fetchSome(ctx context.Context, donors []peer.Donor, layout []phalanx.TensorInfo, index []int, sink peer.Sink, o peer.Options, digests []phalanx.Digest) error {
	some := make([]phalanx.TensorInfo, len(index))
	for k, i := range index {
		some[k] = layout[i]
	}
	parts := make([]peer.Donor, len(donors))
	for k, d := range donors {
		parts[k] = someOf{d, index}
	}
	report, err := peer.Fetch(ctx, parts, some, someSink{sink, index}, o)
	if err != nil {
		return err
	}
	scatter(digests, index, report.Digests)
	return nil
}

func scatter(all []phalanx.Digest, index []int, some []phalanx.Digest) {
	for k, i := range index {
		all[i] = some[k]
	}
}

// someOf is a donor of some of its tensors.
type someOf struct {
	peer.Donor
	index []int
}

func (x someOf) Read(ctx context.Context, tensor int, off int64, p []byte) error {
	return x.Donor.Read(ctx, x.index[tensor], off, p)
}

func (x someOf) Digests(ctx context.Context) ([]phalanx.Digest, error) {
	all, err := x.Donor.Digests(ctx)
	if err != nil {
		return nil, err
	}
	some := make([]phalanx.Digest, len(x.index))
	for k, i := range x.index {
		some[k] = all[i]
	}
	return some, nil
}

// someSink is where they go.
type someSink struct {
	peer.Sink
	index []int
}

func (x someSink) Write(tensor int, off int64, p []byte) error {
	return x.Sink.Write(x.index[tensor], off, p)
}
