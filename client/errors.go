// SPDX-License-Identifier: Apache-2.0

package client

import "errors"

var (
	// ErrDone is returned by Begin when the last step is applied: call Finish.
	ErrDone = errors.New("the job's last step is applied")
	// ErrPreempted is returned when the member leaves before the last step; its state is staged if the daemon asked for
	// it. Exit with status 75.
	ErrPreempted = errors.New("the member leaves before the last step")
	// ErrFenced is returned when the member is not in the world: nothing it computes counts any more. Exit.
	ErrFenced = errors.New("the member is fenced out of the world")
	// ErrOrphaned is returned when no daemon has lived for OrphanAfter. Exit with status 75.
	ErrOrphaned = errors.New("no living daemon")
	// ErrTorn is returned after the optimizer failed: the state is between two steps. The process must exit.
	ErrTorn = errors.New("the state is torn: the optimizer did not finish")
	// ErrRepeat is returned by Finish when the job was rewound below its last step: call Begin.
	ErrRepeat = errors.New("the job was rewound: train on")
	// ErrIllegal is returned for a call out of its order, such as Vote without Begin.
	ErrIllegal = errors.New("illegal call")
	// ErrSeat is returned for a seat that contradicts the job's spec: a mistake of the daemon.
	ErrSeat = errors.New("impossible seat")
	// ErrCollective is returned when a collective could not be carried out although its generation is alive.
	ErrCollective = errors.New("collective failed")
)

// ExitPreempted is the exit status for ErrPreempted and ErrOrphaned.
const ExitPreempted = 75
