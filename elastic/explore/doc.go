// SPDX-License-Identifier: Apache-2.0

// Package explore visits every state that the step protocol can reach within some bounds, with the machines that daemons run.
package explore
