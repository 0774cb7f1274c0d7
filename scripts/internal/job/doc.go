// SPDX-License-Identifier: Apache-2.0

// Package job drives a job from outside, as an operator does: it starts `phalanx run`, asks `phalanx status`, kills processes
// by the ids that the answer names, and cleans up after a run that was killed itself.
package job
