// SPDX-License-Identifier: Apache-2.0

package lm

import (
	"fmt"
	"math"

	"phalanx"
)

// vocabulary is the number of bytes.
const vocabulary = 256

// Shape is the size of a model.
type Shape struct {
	Context int // bytes that the model sees, at least 1
	Embed   int // numbers for one byte
	Hidden  int // units of the hidden layer
	// Dropout is how many of 256 hidden units are dropped on average; 0 turns it off.
	Dropout int
}

// DefaultShape has 53,568 parameters; a global batch of 32 takes some milliseconds on one core.
func DefaultShape() Shape { return Shape{Context: 32, Embed: 16, Hidden: 64, Dropout: 16} }

func (s Shape) String() string {
	return fmt.Sprintf("context=%d embed=%d hidden=%d dropout=%d/256", s.Context, s.Embed, s.Hidden, s.Dropout)
}

// Samples is the number of samples in a text of that many bytes: every place with a whole context before it.
func (s Shape) Samples(bytes int) int64 { return max(0, int64(bytes)-int64(s.Context)) }

// weights are views of the tensors in a block; see layout. Matrices are row-major.
type weights struct {
	embed      []float32 // [vocabulary][Embed]
	hidden     []float32 // [Hidden][Context*Embed]
	hiddenBias []float32 // [Hidden]
	output     []float32 // [vocabulary][Hidden]
	outputBias []float32 // [vocabulary]
}

// Model computes gradients. It keeps scratch memory, so each goroutine needs its own.
type Model struct {
	shape  Shape
	layout *Layout
	seed   uint64

	x, dx      []float32 // embedded context, [Context*Embed]
	pre, h, dh []float32 // hidden layer before and after the nonlinearity, [Hidden]
	keep       []float32 // dropout factors, [Hidden]
	logits     []float32 // then their gradient, [vocabulary]
	odds       []float64 // exp of the logits, [vocabulary]
}

// NewModel returns a model whose random streams are those of the seed.
func NewModel(shape Shape, seed uint64) *Model {
	wide := shape.Context * shape.Embed
	return &Model{
		shape: shape, layout: NewLayout(shape), seed: seed,
		x: make([]float32, wide), dx: make([]float32, wide),
		pre: make([]float32, shape.Hidden), h: make([]float32, shape.Hidden), dh: make([]float32, shape.Hidden),
		keep: make([]float32, shape.Hidden), logits: make([]float32, vocabulary), odds: make([]float64, vocabulary),
	}
}

// Gradient adds the gradient of the mean loss over the samples of a slot to gradient, a cleared block of Layout.Elements
// numbers, and returns that loss in nats. Samples are computed one by one, in order. Parameters are only read.
func (m *Model) Gradient(gradient, parameters []float32, text []byte, samples []int64, step phalanx.Step, slot phalanx.Slot) float64 {
	w, g := m.layout.weights(parameters), m.layout.weights(gradient)
	noise := newStream(m.seed, "dropout", uint64(step), uint64(slot))
	share := 1 / float32(len(samples))
	var loss float64
	for _, at := range samples {
		context := text[at : at+int64(m.shape.Context)]
		target := text[at+int64(m.shape.Context)]
		loss += m.forward(w, context, target, &noise)
		m.backward(w, g, context, target, share)
	}
	return loss / float64(len(samples))
}

// forward leaves what backward needs in the model and returns the loss of one sample.
func (m *Model) forward(w weights, context []byte, target byte, noise *stream) float64 {
	width := m.shape.Embed
	for i, c := range context {
		copy(m.x[i*width:(i+1)*width], w.embed[int(c)*width:])
	}
	m.drop(noise)
	for j := range m.pre {
		m.pre[j] = w.hiddenBias[j] + dot(w.hidden[j*len(m.x):(j+1)*len(m.x)], m.x)
		// Softsign: a sigmoid from exact operations only.
		m.h[j] = float32(m.pre[j] / (1 + abs(m.pre[j])) * m.keep[j])
	}
	top := float32(math.Inf(-1))
	for v := range m.logits {
		m.logits[v] = w.outputBias[v] + dot(w.output[v*len(m.h):(v+1)*len(m.h)], m.h)
		top = max(top, m.logits[v])
	}
	var sum float64
	for v, l := range m.logits {
		m.odds[v] = exp(float64(l) - float64(top))
		sum += m.odds[v]
	}
	loss := log(sum) + float64(top) - float64(m.logits[target])
	for v := range m.odds {
		m.odds[v] /= sum
	}
	return loss
}

// drop draws the dropout factors of one sample.
func (m *Model) drop(noise *stream) {
	scale := 256 / float32(256-m.shape.Dropout)
	var word uint64
	for j := range m.keep {
		if j%8 == 0 {
			word = noise.next()
		}
		m.keep[j] = scale
		if int(byte(word)) < m.shape.Dropout {
			m.keep[j] = 0
		}
		word >>= 8
	}
}

// backward adds share times the gradient of one sample to g.
func (m *Model) backward(w, g weights, context []byte, target byte, share float32) {
	clear(m.dh)
	for v := range m.odds {
		d := float32(m.odds[v])
		if v == int(target) {
			d -= 1
		}
		d = float32(d * share)
		g.outputBias[v] += d
		row := m.shape.Hidden
		axpy(g.output[v*row:(v+1)*row], d, m.h)
		axpy(m.dh, d, w.output[v*row:(v+1)*row])
	}
	clear(m.dx)
	for j, d := range m.dh {
		below := 1 + abs(m.pre[j])
		d = float32(d*m.keep[j]) / float32(below*below)
		g.hiddenBias[j] += d
		row := len(m.x)
		axpy(g.hidden[j*row:(j+1)*row], d, m.x)
		axpy(m.dx, d, w.hidden[j*row:(j+1)*row])
	}
	width := m.shape.Embed
	for i, c := range context {
		axpy(g.embed[int(c)*width:(int(c)+1)*width], 1, m.dx[i*width:(i+1)*width])
	}
}

func abs(x float32) float32 {
	return math.Float32frombits(math.Float32bits(x) &^ (1 << 31))
}
