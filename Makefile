# rcfarm. `make help` explains the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help build curl runc test uptimes race e2e faults blind sequences bench bench-table chaos chaos-nofence chaos-nocompanions fuzz mutants demo schema reference lint fmt clean ALWAYS

GO       ?= go
MODULE   := github.com/rcfarm/rcfarm
PROGRAMS := bin/farm bin/preparer bin/rcctl
SOURCES  := $(shell find cmd pkg -name '*.go' -not -name '*_test.go') $(wildcard docs/*.go docs/*.md pkg/rcctl/samples/*) go.mod go.sum
# What the version comes from; nothing where this is no repository, nor is one that only contains it.
DESCRIBED := $(if $(wildcard .git),$(shell git describe --tags --always --dirty 2>/dev/null))
LINTER   := bin/golangci-lint
GREMLINS := bin/gremlins
TESTTIME ?= 25m
# Packages that read the clock since the machine's start. Their tests run as on a machine that was started 1 s and 400 days ago: UPTIMES is in
# seconds. With UPTIMES= they run by this machine's own clock.
UPTIMES  ?= 1 34560000
BOOTTIME := $(patsubst %/,%,$(sort $(dir $(shell grep -rlE --include='*.go' 'CLOCK_BOOTTIME|/proc/uptime|preparer/runtime/proc"' pkg))))
# Tests of images and containers mount and change owners, so they need root. Another user's `make test` leaves them out.
ROOTED   := $(if $(filter-out 0,$(shell id -u)),$(addprefix pkg/preparer/,image image/layer image/overlay runtime/idmap runtime/runc runtime/shim/containertest))
SEED     ?= 0
CHAOS_TIME ?= 2m
FAULTS   ?= 200
FUZZ_TIME ?= 60s
MUTANTS  ?= pkg/farm/reconcile pkg/farm/placement pkg/scheduler pkg/rollout pkg/deploy/plan pkg/election/ballot

# A program that looks for races sleeps for a second before it exits, and tests start hundreds of such programs.
export GORACE := atexit_sleep_ms=0

# Sockets of tests live below it, and the kernel limits a socket's path to 107 bytes.
ifneq ($(shell dir="$${TMPDIR:-}"; [ $${#dir} -le 20 ] || echo long),)
export TMPDIR := /tmp
endif

help: ## show this text
	@echo 'rcfarm: a replication-controller farm on Consul'; echo
	@grep -hE '^[a-z0-9/-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14
	@echo; echo 'Variables: RUN=name runs one end-to-end scenario; BENCH=name one benchmark; SEED=n and CHAOS_TIME=10m'
	@echo 'make a fault run that one and that long; CONSUL_BIN=path uses that Consul;'
	@echo 'FUZZ_TIME=10m is how long each fuzz target runs; MUTANTS=pkg/x is what is mutated, MUTANTSFLAGS="-only scale" a part of it.'

build: $(PROGRAMS) bin/hello.tar.gz ## build the three programs and the sample artifact into bin/

# Static: they run on any Linux, and whatever a preparer starts begins as a copy of it, which takes half the time.
$(PROGRAMS): bin/%: $(SOURCES) bin/.described
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-X github.com/rcfarm/rcfarm/pkg/app.described=$(DESCRIBED)' -o $@ ./cmd/$*

# The file changes when what git says does: the programs are linked again then.
bin/.described: ALWAYS
	@mkdir -p bin; [ "$$(cat $@ 2>/dev/null)" = '$(DESCRIBED)' ] && [ -e $@ ] || echo '$(DESCRIBED)' > $@
ALWAYS:

bin/hello.tar.gz: integration/hello/main.go bin/pack.sh
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/hello ./integration/hello
	bin/pack.sh bin/hello $@

bin/consul: integration/tools/consul/go.mod ## provide Consul: $CONSUL_BIN, else one >= 1.15 on PATH, else build the pinned one
	bin/consul.sh $@

curl: ## provide curl and other programs that scenarios call: on PATH, else Debian's packages, which root may install
	bin/debian.sh curl curl
	bin/debian.sh iproute2 ip
	bin/debian.sh openssl openssl
	bin/debian.sh procps pgrep pkill

runc: ## provide runc: on PATH, else Debian's package, which root may install
	bin/debian.sh runc runc

# Chaos and the scenarios run alone, because others would take the time that they wait for. The scenarios start the programs,
# which have no race detector: in their own code it would take a quarter of the machine's time.
test: build bin/consul curl $(if $(ROOTED),,runc) ## everything that must pass: unit, real-Consul and end-to-end tests
	@$(if $(ROOTED),echo 'without the tests that need root: $(ROOTED)',:)
	$(GO) test -race -shuffle=on -timeout $(TESTTIME) -parallel 4 $$($(GO) list ./... | grep -vxF -e $(MODULE)/integration/chaos \
	  -e $(MODULE)/integration/e2e $(if $(UPTIMES),$(BOOTTIME:%=-e $(MODULE)/%)) $(ROOTED:%=-e $(MODULE)/%))
	CGO_ENABLED=0 $(GO) test ./pkg/internal/account # as the programs are built
	$(MAKE) --jobs=2 --output-sync=target uptimes
	$(GO) test -race -shuffle=on -timeout $(TESTTIME) ./integration/chaos
	CGO_ENABLED=0 $(GO) test -shuffle=on -timeout $(TESTTIME) -parallel 6 ./integration/e2e

# They wait more than they compute, so machines of all ages run at a time, with four tests each. Races are looked for on the
# first; the others run as programs are built.
uptimes: $(UPTIMES:%=uptime-%) ## the packages that read the clock since the machine's start, as on machines of other ages; UPTIMES=3600 for one

uptime-%: bin/consul
	$(if $(filter $*,$(firstword $(UPTIMES))),$(GO) test -race,CGO_ENABLED=0 $(GO) test) -shuffle=on -timeout $(TESTTIME) -parallel 4 \
	  -exec "'$(CURDIR)/bin/uptime.sh' $*" $(BOOTTIME:%=./%)

race: build bin/consul curl runc ## the tests three times in a row, in another order each time
	$(GO) test -race -shuffle=on -count=3 -timeout 45m ./...

e2e: build bin/consul curl ## the end-to-end scenarios; RUN=name for one, such as RUN=wipe
	$(GO) test -count=1 -v -timeout $(TESTTIME) -run '^TestScenario$(if $(RUN),/^$(RUN)$$)' ./integration/e2e

faults: build bin/consul ## kill -9 a preparer at FAULTS=200 random steps (SEED=n), also on a full disk and beside a stopped supervisor; set the machine's clock an hour ahead, behind and back
	FAULTS=$(FAULTS) SEED=$(SEED) $(GO) test -count=1 -v -timeout $(TESTTIME) -run '^TestKilledAnywhere' ./pkg/preparer
	$(GO) test -count=1 -v -timeout $(TESTTIME) -tags clockstep -run '^TestScenario/^clock-step$$' ./integration/e2e

blind: build bin/consul ## farms and a preparer that do not see Consul until it has forgotten deletions; 22 minutes
	$(GO) test -count=1 -v -timeout 40m -tags blindfarm -run '^TestScenario/^blind-farm$$' ./integration/e2e

sequences: build bin/consul ## random sequences of what people do to services: what runs at rest, and what plans say
	$(GO) test -count=1 -v -timeout $(TESTTIME) -tags sequences -run '^TestScenario/^sequences$$' ./integration/e2e

bench: build bin/consul ## measure against the goals, table and bin/bench.json; BENCH=name or name/part for one
	$(GO) build -trimpath -o bin/bench ./integration/bench
	bin/bench -run '$(BENCH)' $(BENCHFLAGS)

bench-table: ## write the results of bin/bench.json into the table of docs/performance.md
	$(GO) run ./integration/bench -docs docs/performance.md

chaos: build bin/consul ## a cluster under faults, judged from Consul's own log; SEED=n CHAOS_TIME=10m
	$(GO) build -trimpath -o bin/chaos ./integration/chaos
	bin/chaos -seed $(SEED) -time $(CHAOS_TIME) -v $(CHAOSFLAGS)

# One late write in a run is enough, and not every run has one.
chaos-nofence: build bin/consul ## the same without the fence: succeeds only if the checker finds writes that it prevents
	$(GO) build -trimpath -o bin/mutants ./integration/mutants
	bin/mutants -build fence -o bin/chaos-nofence ./integration/chaos
	CGO_ENABLED=0 bin/mutants -build fence -o bin/farm-nofence ./cmd/farm
	for try in 1 2 3 4; do \
	  bin/chaos-nofence -farm bin/farm-nofence -expect fence -faults agent-pause-busy -seed $(SEED) -time $(CHAOS_TIME) -v $(CHAOSFLAGS) && exit 0; \
	done; exit 1

# A run has a revision with few pods in the wrong moment, or it does not.
chaos-nocompanions: build bin/consul ## the same with a minimum and a bound for each revision: succeeds only if the checker finds violations of a service's
	$(GO) build -trimpath -o bin/chaos ./integration/chaos
	$(GO) build -trimpath -o bin/mutants ./integration/mutants
	CGO_ENABLED=0 bin/mutants -build companions -o bin/farm-nocompanions ./cmd/farm
	for try in 1 2 3 4; do \
	  bin/chaos -farm bin/farm-nocompanions -expect service -faults farm-kill,farm-pause,agent-pause,preparer-stop -seed $(SEED) -time $(CHAOS_TIME) -v $(CHAOSFLAGS) && exit 0; \
	done; exit 1

# A shrunk input is nice to have, but new ones find more; what crashes is shrunk all the same.
fuzz: ## run every fuzz target of the module; FUZZ_TIME=10m for longer than a minute each
	@found=0; while IFS=: read -r file _ name; do found=1; \
	  echo "fuzzing $$name in $$(dirname $$file) for $(FUZZ_TIME)"; \
	  $(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZ_TIME) -fuzzminimizetime 20x ./$$(dirname $$file); \
	done < <(grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' cmd pkg integration | sed 's/func //'); \
	[ $$found = 1 ] || { echo 'no fuzz target found'; exit 1; }

mutants: $(GREMLINS) ## change the pure decisions, one operator at a time: their own tests must notice 95 %; MUTANTS=pkg/x for others
	$(GO) build -trimpath -o bin/mutants ./integration/mutants
	bin/mutants -gremlins $(GREMLINS) $(MUTANTSFLAGS) $(MUTANTS)

demo: build bin/consul ## the main job in one command: deploy, scale, crash, recover, delete
	$(GO) run ./integration/demo

schema: ## write the JSON Schemas in docs/, which follow from the programs and the tables there
	$(GO) test -count=1 -run '^TestSchemasAreUpToDate$$' ./integration/schema -update

reference: ## write those parts of docs/reference that follow from the programs
	$(GO) test -count=1 -run '^TestReference$$' ./integration -update

lint: $(LINTER) ## the linters; depguard holds the import rules; then the length of docs
	GOLANGCI_LINT_CACHE=$(CURDIR)/bin/.lint-cache $(LINTER) run --allow-parallel-runners ./... # a cache of its own: a shared one names files of other checkouts
	$(GO) test -count=1 -run '^TestDocs' ./integration

fmt: $(LINTER) ## format the code as the linters want it
	$(LINTER) fmt ./...

$(LINTER): integration/tools/lint/go.mod
	@echo 'building golangci-lint, once; about two minutes on two cores'
	cd integration/tools/lint && $(GO) build -mod=mod -o ../../../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(GREMLINS): integration/tools/mutants/go.mod
	cd integration/tools/mutants && $(GO) build -mod=mod -o ../../../$@ github.com/go-gremlins/gremlins/cmd/gremlins

clean: ## remove what was built, except Consul, the linter and gremlins
	rm -f $(PROGRAMS) bin/.described bin/hello bin/hello.tar.gz bin/bench bin/chaos bin/chaos-nofence bin/farm-nofence bin/farm-nocompanions bin/mutants
