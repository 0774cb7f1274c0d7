// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"errors"
	"fmt"
	"strconv"
)

// warm is the value of --warm: how many processes are started ahead on this host.
type warm int

func (w *warm) String() string { return strconv.Itoa(int(*w)) }
func (w *warm) Type() string   { return "K" }

func (w *warm) Set(text string) error {
	switch text {
	case "cuda":
		return errors.New("cuda is reserved: a process that is started ahead makes its device context when it takes over; give a number")
	case "true":
		text = "1"
	case "false":
		text = "0"
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return fmt.Errorf("%q is no number of processes; give one, as in --warm=2", text)
	}
	*w = warm(n)
	return nil
}
