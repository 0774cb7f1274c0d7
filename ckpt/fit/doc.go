// SPDX-License-Identifier: Apache-2.0

// Package fit puts the state of one rank together of the tensors of any checkpoint that package view reads: one that was written
// with another number of coordinates or another cut of the model, or one of another program.
//
// New is pure: it says in both directions what does not fit, before anything is read. Read gives the elements of one tensor of the
// state, box by box, each verified as package view verifies it, whatever mesh they were saved on.
package fit
