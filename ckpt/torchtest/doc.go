// SPDX-License-Identifier: Apache-2.0

// Package torchtest holds tests that let real PyTorch read what is written here, and read here what PyTorch writes. They
// have the build tag torch and run by `make test-torch` (PyTorch 2.15) and `make test-torch-matrix` (2.15, 2.11 and 2.6);
// scripts/torch-env.sh makes the virtual environment on first use. `go test -tags torch ./ckpt/torchtest -torch 2.6` runs
// one version.
//
// The PyTorch side is driver.py, one process for all tests. It is started so that it sees the standard library and its
// virtual environment only: what it loads needs nothing of this project.
package torchtest
