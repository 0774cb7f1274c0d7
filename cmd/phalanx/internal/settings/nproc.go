// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// nproc is the value of --nproc: a number, or what is counted on this host.
type nproc int

func (n *nproc) String() string { return strconv.Itoa(int(*n)) }
func (n *nproc) Type() string   { return "N|auto|gpu|cpu" }

func (n *nproc) Set(text string) error {
	devices, _ := filepath.Glob("/dev/nvidia[0-9]*") // the pattern is right
	visible, set := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	count, err := members(text, runtime.NumCPU(), gpus(len(devices), visible, set))
	if err == nil {
		*n = nproc(count)
	}
	return err
}

// members is how many --nproc asks for on a host with so many processors and GPUs.
func members(text string, cpus, gpus int) (int, error) {
	switch {
	case text == "cpu", text == "auto" && gpus == 0:
		return cpus, nil
	case text == "gpu" && gpus == 0:
		return 0, errors.New("gpu: this host has no GPU that may be used; give a number, or cpu")
	case text == "gpu", text == "auto":
		return gpus, nil
	}
	count, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%q is no number; give one, or auto, gpu or cpu", text)
	}
	return count, nil
}

// gpus is how many of the devices CUDA_VISIBLE_DEVICES lets be seen. As in CUDA, what follows a device that does not exist is
// not seen.
func gpus(devices int, visible string, set bool) int {
	if !set {
		return devices
	}
	seen := 0
	for word := range strings.SplitSeq(visible, ",") {
		word = strings.TrimSpace(word)
		if i, err := strconv.Atoi(word); word == "" || err == nil && (i < 0 || i >= devices) {
			break
		}
		seen++
	}
	return min(seen, devices)
}
