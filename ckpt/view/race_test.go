// SPDX-License-Identifier: Apache-2.0

//go:build race

package view

// raceDetector: this is a build with -race, which takes many times as long.
const raceDetector = true
