// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || purego

package kernels

// haveAVX2 is a constant here, so that the calls below are never reached and are compiled away.
const haveAVX2 = false

func leafBest(p []byte, k *laneKeys) [2]uint64 { return leafGeneric(p, 0, k) }

func statsF32Best([]byte, *[accumulators]float64) (done int, top uint32, bad int64) { return 0, 0, 0 }

func addF32Best(dst, a, b []float32) int              { return 0 }
func addF64Best(dst, a, b []float64) int              { return 0 }
func addI64Best(dst, a, b []int64) int                { return 0 }
func scaleF32Best(dst, a []float32, s float32) int    { return 0 }
func scaleF64Best(dst, a []float64, s float64) int    { return 0 }
func f32FromBF16Best(dst []float32, src []uint16) int { return 0 }
func bf16FromF32Best(dst []uint16, src []float32) int { return 0 }
func f32FromF16Best(dst []float32, src []uint16) int  { return 0 }
func f16FromF32Best(dst []uint16, src []float32) int  { return 0 }
func sumF32Best([]float32, [][]float32, float32) int  { return 0 }
func streamBest(dst, src []byte) int                  { return 0 }
