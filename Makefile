# SPDX-License-Identifier: Apache-2.0
#
# The same targets serve a developer and CI. A bare `make` prints them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO ?= go
# How many packages are built and tested at a time. The tests of whole clusters start many processes of their own.
PARALLEL ?= 2
# More flags for `make explore`: its bounds of memory and time.
EXPLOREFLAGS ?= -gib 24 -time 4h
# More flags for every `go test`, such as TESTFLAGS='-v -run TestP1'.
TESTFLAGS ?=
FUZZTIME ?= 1m
# How long `make soak` trains.
export SOAK ?= 2h
SEEDS ?= 100
PARTITIONS ?= 10m
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

# Newer amd64 levels let the compiler fuse a product and a sum, which changes bits: all builds of a job use the same level.
export GOAMD64 := v1
# The version is asked from git below; go itself would fail where the checkout belongs to another user.
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false)

LINT := $(GO) tool -modfile=tools/go.mod golangci-lint

# These start real processes and measure what they do, so they run alone, after everything else.
PACKAGES = $(shell $(GO) list ./...)
E2E = phalanx/chaos phalanx/chaos/% phalanx/cmd/%
E2E_PACKAGES = $(filter $(E2E),$(PACKAGES))
UNIT_PACKAGES = $(filter-out $(E2E),$(PACKAGES))
# Arithmetic, properties over much memory and millions of states, ten times slower with the race detector: they run whole without it, and those
# with goroutines once more, short, with it.
HEAVY = phalanx/kernels phalanx/ckpt phalanx/collective/host phalanx/cmd/phalanx-lm phalanx/cmd/phalanx-lm/lm phalanx/elastic/explore phalanx/chaos/sim
GO_TEST = $(GO) test -race -shuffle=on -vet=off -timeout=7m $(TESTFLAGS)

.PHONY: help
help: ## print this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/phalanx and bin/phalanx-lm, static, without cgo
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -p $(PARALLEL) -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/ ./cmd/phalanx ./cmd/phalanx-lm

# The client library in C, for Python in a checkout; the wheel builds its own (python/setup.py).
PYLIB = python/src/phalanx/_lib/libphalanx.so
PYLIB_FLAGS = -std=gnu11 -D_GNU_SOURCE -O2 -ffp-contract=off -fvisibility=hidden -fPIC -shared -pthread -Wall -Wextra -Werror

.PHONY: python
python: $(PYLIB) ## build the client library in C for the Python package; wants cc

$(PYLIB): $(wildcard python/csrc/*.c python/csrc/*.h)
	@mkdir -p $(@D)
	$(CC) $(PYLIB_FLAGS) -o $@.new $(filter %.c,$^)
	mv $@.new $@

.PHONY: test
test: test-go test-s3 test-torch ## everything that must pass

.PHONY: test-go
test-go: fmt-check vet lint build ## format, vet, lint, build, all tests in Go, with -race where goroutines meet
	$(GO_TEST) -p $(PARALLEL) $(filter-out $(HEAVY),$(UNIT_PACKAGES))
	$(GO) test -shuffle=on -vet=off -timeout=7m $(TESTFLAGS) -p $(PARALLEL) $(HEAVY)
	$(GO) test -tags failpoints -vet=off $(TESTFLAGS) phalanx/internal/failpoint
	$(GO) test -tags planted -vet=off -timeout=7m $(TESTFLAGS) -run Plant phalanx/internal/planted phalanx/elastic phalanx/elastic/explore phalanx/client phalanx/node phalanx/cmd/phalanx-lm phalanx/chaos/sim
	$(GO_TEST) -short -p $(PARALLEL) phalanx/kernels
	$(GO_TEST) -short -p $(PARALLEL) phalanx/ckpt phalanx/collective/host -rapid.checks=8
	$(GO_TEST) -short phalanx/chaos/sim
	$(if $(strip $(E2E_PACKAGES)),$(GO_TEST) -timeout=15m -p 1 $(filter-out $(HEAVY),$(E2E_PACKAGES)))

.PHONY: test-s3
test-s3: ## the store in buckets against a real S3 server (versitygw); the first run builds the server, which takes minutes
	scripts/versitygw.sh
	$(GO) vet -tags s3 ./ckpt/s3/... ./ckpt/intake ./chaos
	$(GO) test -tags s3 -vet=off -timeout=7m $(TESTFLAGS) -run Gateway -p 1 ./ckpt/s3 ./ckpt/intake ./chaos

.PHONY: test-seaweedfs
test-seaweedfs: ## the same against SeaweedFS, a second opinion; not in CI: the first run builds it, a quarter of an hour
	scripts/seaweedfs.sh
	$(GO) vet -tags seaweedfs ./ckpt/s3/... ./chaos
	$(GO) test -tags seaweedfs -vet=off -timeout=15m $(TESTFLAGS) -run Weed -p 1 ./ckpt/s3 ./chaos

# The version of PyTorch for test-torch, and more flags for its pytest.
TORCH ?= 2.15
PYTESTFLAGS ?=

.PHONY: test-torch
test-torch: ## real PyTorch (TORCH=2.15) reads what is written here and the other way round; makes its environment in the cache
	$(GO) test -tags torch -timeout=15m $(TESTFLAGS) ./ckpt/torchtest -torch $(TORCH)
	scripts/test-python.sh $(TORCH) $(PYTESTFLAGS)

.PHONY: test-torch-matrix
test-torch-matrix: ## test-torch with each version that scripts/torch has: 2.15, 2.11 and 2.6
	for version in 2.15 2.11 2.6; do $(MAKE) test-torch TORCH=$$version; done

.PHONY: sim
sim: ## whole clusters in simulated time, SEEDS (100) of them; see docs/simulation.md
	$(GO) test -timeout=0 $(TESTFLAGS) ./chaos/sim -run TestSeeds -v -sim.seeds $(SEEDS) | grep -v -e '^=== ' -e '--- PASS'

.PHONY: race
race: ## the tests below chaos and cmd alone, with the race detector: the short loop while writing
	$(GO_TEST) -p $(PARALLEL) $(UNIT_PACKAGES)

.PHONY: vet
vet: ## go vet
	$(GO) vet -p $(PARALLEL) ./...

.PHONY: lint
lint: ## golangci-lint, as pinned in tools/go.mod (the first build of it takes minutes)
	$(LINT) run --allow-parallel-runners --concurrency $(PARALLEL) ./...

.PHONY: fmt
fmt: ## format the Go sources in place
	gofmt -w $$(git ls-files --cached --others --exclude-standard '*.go')

.PHONY: fmt-check
fmt-check: ## list Go sources that gofmt would change, and fail on any
	@unformatted=$$(gofmt -l .); if [[ -n $$unformatted ]]; then \
		printf 'not formatted (run make fmt):\n%s\n' "$$unformatted" >&2; exit 1; fi

.PHONY: gen
gen: ## write the generated files again
	$(GO) generate ./...

.PHONY: demo
demo: build ## train with four ranks, kill some, and show that the result is the same to the bit
	scripts/demo.sh

.PHONY: demo-torch
demo-torch: build python ## the demo with PyTorch and the example train_ddp.py; takes some minutes
	scripts/demo-torch.sh

.PHONY: bench
bench: build ## measure recovery, steps, the host all-reduce and the daemons; see docs/benchmarks (QUICK=1: a minute, no figures)
	scripts/bench.sh

.PHONY: bench-rivals
bench-rivals: build ## measure gloo, torchft and torchrun beside it; makes its own Python environment in the cache
	scripts/rivals.sh

.PHONY: bench-ckpt
bench-ckpt: build ## measure checkpoints beside PyTorch's DCP and torch-checkpointing (QUICK=1: a minute, no figures)
	scripts/bench-ckpt.sh

.PHONY: bench-torch
bench-torch: ## measure training with PyTorch through kills beside torchft, torchrun, gloo and DDP (QUICK=1: small counts, no figures)
	scripts/bench-torch.sh

.PHONY: explore
explore: ## visit every state of 3 members, 2 steps and 2 faults; EXPLOREFLAGS='-gib 24 -time 4h'; see docs/explorer.md
	$(GO) run ./elastic/explore/explorer -levels $(EXPLOREFLAGS)

.PHONY: soak
soak: build ## train for SOAK (2h) under kills, stops, drains and resizes; fail on other results, lost state, and what grows
	scripts/soak.sh

.PHONY: partitions
partitions: ## break the network between four hosts in random ways for PARTITIONS (10m); as root
	$(GO) test -tags partitions -v -run 'TestLong' -vet=off -timeout=90m ./chaos/netns -lasts $(PARTITIONS) $(TESTFLAGS)

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (1m); docs/fuzzing.md lists them
	@grep -rl --include='*_test.go' '^func Fuzz' . | xargs -r -n 1 dirname | sort -u | while read -r dir; do \
		$(GO) test -list '^Fuzz' "$$dir" | { grep '^Fuzz' || true; } | while read -r target; do \
			echo "fuzz $$dir $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime '$(FUZZTIME)' -fuzzminimizetime 10x -parallel $(PARALLEL) "$$dir" </dev/null; \
		done; \
	done

.PHONY: tidy
tidy: ## tidy go.mod and tools/go.mod
	$(GO) mod tidy
	cd tools && $(GO) mod tidy

.PHONY: clean
clean: ## remove what was built
	rm -rf bin python/src/phalanx/_lib
