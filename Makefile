# Each target also works by hand; `make help` lists them.
GO       ?= go
FUZZTIME ?= 30s
IMAGE    ?= containerdisk
DOCKER   ?= docker
TOOL      = $(GO) tool -modfile=tools/go.mod

.DEFAULT_GOAL := help
.PHONY: help setup demo verify build check fmt lint test deps deps-update docs e2e conformance conformance-peers crash fuzz bench-iscsi bench-nbd bench-ready image clean

help:      ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t16

demo:      ## make a disk of this machine's own files and serve it over iSCSI (set-up included)
	@tools/setup.sh demo
	@$(MAKE) --no-print-directory build
	@tools/demo.sh

verify:    ## set-up, all checks, the end-to-end tests, a short fuzz: what CI runs
	tools/setup.sh all
	$(MAKE) check
	$(MAKE) e2e E2E_REQUIRE=all
	$(MAKE) fuzz FUZZTIME=$(VERIFY_FUZZTIME)
VERIFY_FUZZTIME ?= 10s

setup:     ## install the Debian packages that the tests use (apt, as root or with sudo)
	tools/setup.sh all

build:     ## static binary in bin/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags='-s -w' -o bin/ ./cmd/...

check: fmt lint test deps docs  ## all that a commit must pass

fmt:       ## fail on unformatted files
	@out=$$(gofmt -l .); test -z "$$out" || { echo "not formatted (gofmt -w):"; echo "$$out"; exit 1; }

lint:      ## golangci-lint (built from source the first time: two minutes)
	$(TOOL) golangci-lint run ./...

test:      ## unit tests, race detector, random order
	$(GO) test -race -shuffle=on ./...

deps:      ## third-party packages must match deps.txt
	@tools/deps.sh | diff deps.txt - || { echo "the packages differ from deps.txt (<: in the file, >: in the program); if that is meant: make deps-update"; exit 1; }

deps-update: ## write deps.txt anew
	tools/deps.sh > deps.txt

docs:      ## names in the documents exist, settings are described, links lead somewhere
	$(GO) test -count=1 -run 'TestDocs' ./internal/archtest ./internal/config ./internal/status

e2e: build ## real clients and real VMs against the real binary; E2E_REQUIRE=all: nothing may be missing
	E2E_REQUIRE=$(E2E_REQUIRE) $(GO) test -count=1 -tags e2e -timeout 20m ./imageconv/...
	E2E_REQUIRE=$(E2E_REQUIRE) CONTAINERDISK_BIN=$(CURDIR)/bin/containerdisk \
		$(GO) test -count=1 -tags e2e -timeout 45m -p 1 -v ./test/...

conformance: build ## libiscsi's suite, each test by itself, against a raw, a qcow2 and a read-only disk (set-up included)
	@tools/setup.sh suite
	E2E_REQUIRE=all CONTAINERDISK_BIN=$(CURDIR)/bin/containerdisk \
		$(GO) test -C test -count=1 -tags e2e -timeout 20m -run '^TestConformance$$'

conformance-peers: build ## the same suite against us and tgtd, side by side (set-up included)
	@tools/setup.sh suite
	E2E_REQUIRE=all E2E_COMPARE=tgtd CONTAINERDISK_BIN=$(CURDIR)/bin/containerdisk \
		$(GO) test -C test -count=1 -tags e2e -timeout 20m -run '^TestConformancePeers$$'

crash: build ## kill -9 and, as root, losses of power, at random moments: CRASH_KILLS=1000 CRASH_CUTS=200
	CRASH_KILLS=$(CRASH_KILLS) CRASH_CUTS=$(CRASH_CUTS) CONTAINERDISK_BIN=$(CURDIR)/bin/containerdisk \
		$(GO) test -C test/crash -count=1 -tags e2e -timeout 3h -v
CRASH_KILLS ?= 1000
CRASH_CUTS  ?= 200

fuzz:      ## every fuzz target for FUZZTIME
	GO='$(GO)' tools/fuzz.sh $(FUZZTIME)

bench-iscsi: build ## the iSCSI target beside tgtd: ROUNDS=5 DURATION=3 SIZE=1024
	tools/bench-iscsi.sh

bench-nbd: build ## NBD side by side with nbdkit, qemu-nbd and nbd-server, over a Unix socket (set-up included)
	@tools/setup.sh all
	@tools/bench-nbd.sh

bench-ready: build ## exec to the first read, and hydration, beside qemu-nbd and qemu-img + tgtd (set-up included)
	@tools/setup.sh all
	@tools/bench-ready.sh

bench-convert: build ## conversion side by side with qemu-img: TREE=/usr ROUNDS=5 (20 minutes, 15 GB)
	@tools/setup.sh demo
	@tools/bench-convert.sh

image: build ## the container image, FROM scratch
	tools/image.sh $(DOCKER) $(IMAGE)

clean:     ## remove what was built
	rm -rf bin build
