# SPDX-License-Identifier: Apache-2.0

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# As images and Kubernetes are built, so that nothing is compiled twice.
export CGO_ENABLED ?= 0
export GOFLAGS := $(filter-out -trimpath,$(shell go env GOFLAGS)) -trimpath

tool := go tool -modfile=hack/tools/go.mod
# make vet and make lint look at all that go test would look at by itself. Tests are linked a third
# faster without what a debugger needs.
TEST_FLAGS ?= -count=1 -timeout 60m -vet=off -ldflags=-w
# A test with real traffic that another machine's load disturbed is run once more,
# alone, and named in _out/flaky.txt: see docs/developing.md.
gotestsum := $(tool) gotestsum --format pkgname-and-test-fails --rerun-fails=1 --rerun-fails-max-failures=12 --rerun-fails-run-root-test
PACKAGES ?= ./...
ARGS ?=
# A $ in ARGS is the user's own, as in ARGS='--only ^http$ --trials 1': make leaves it
# alone, and xargs divides the words, which may have quotes.
override ARGS := $(value ARGS)
export ARGS
with_args = @mapfile -t args < <(xargs -r -n 1 printf '%s\n' <<<"$$ARGS") && exec $(1) "$${args[@]}"

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ What a user runs

.PHONY: demo
demo: root deps kube ## Show one connection filling three NICs; ARGS=--keep leaves the lab up, ARGS=--down removes it, ARGS=--vm has virtual machines
	@mkdir -p _out/bin && hack/progress.sh make "compiling the demo" go build -o _out/bin/demo ./hack/demo
	$(call with_args,_out/bin/demo)

.PHONY: bench
bench: root deps kube ## Measure goodput and cost; writes _out/bench.json
	@mkdir -p _out/bin && hack/progress.sh make "compiling the bench" go build -o _out/bin/bench ./hack/bench
	$(call with_args,_out/bin/bench)

.PHONY: soak
soak: ## Wear a cluster out for half an hour, and see that nothing is left; BRAID_SOAK=10m says for how long
	@$(MAKE) bench ARGS='--only ^soak$$'

.PHONY: images
images: ## Build the images of the controller and the agent for amd64 and arm64, with bills of materials, into _out/images
	@hack/image/build.sh "$$(awk '$$1 == "appVersion:" { print $$2 }' charts/braid/Chart.yaml)" amd64 arm64

.PHONY: release
release: images ## Make what a release page offers in _out/release; ARGS='--url URL' says where it will be, ARGS=linux/amd64 names platforms
	$(call with_args,hack/release/build.sh --images $(CURDIR)/_out/images)

.PHONY: screenshots
screenshots: browser kube ## Make the pictures of kubectl braid ui that docs/ has, of a made-up cluster
	@mkdir -p docs/images
	BRAID_SCREENSHOTS=$(CURDIR)/docs/images go test -count=1 -run '^TestUI$$' ./plugin
	@ls docs/images/ui-*.png

.PHONY: docs
docs: ## Make a site of README.md and docs/, with a search, in _out/site; ARGS=--serve serves it
	@hack/site/build.sh $(ARGS)

.PHONY: build
build: ## Build the programs into _out/bin
	@mkdir -p _out/bin && go build -o _out/bin/ ./cmd/...

##@ What a developer runs

.PHONY: test
test: root browser compiler kube cluster ## Run all tests; PACKAGES=./policy/... runs some
	@$(MAKE) vet
	@$(MAKE) --keep-going test-beside test-cluster test-waiting test-light test-network test-alone
	@go run ./hack/flaky _out/flaky.txt

# Tests run in six parts: those that only compute or ask an API server; those of a cluster
# with kubelets, beside other work; those that wait in namespaces for what is to happen, beside
# other work too; those that carry traffic and compare rates, which wait most of the time,
# several packages at a time, of which those that work least can go on beside the cluster; and
# those that flood, with the machine for themselves.
# $(call tests,PART,FLAGS) runs a part, and renews its part of _out/flaky.txt. What each test
# took is in _out/times-PART.json: make slowest. Go links a tenth faster when it collects its
# garbage rarely, which the tests are not to do.
define tests
	@mkdir -p _out && rm -f _out/flaky-$(1).txt
	@packages=$$(hack/packages.sh $(1) $(PACKAGES) | xargs); failed=0; \
	[[ -z $$packages ]] || GOGC=400 $(gotestsum) --rerun-fails-report=_out/flaky-$(1).txt --jsonfile-timing-events=_out/times-$(1).json --packages="$$packages" -- $(2) -exec 'env -u GOGC' $(TEST_FLAGS) || failed=$$?; \
	cat _out/flaky-*.txt >_out/flaky.txt 2>/dev/null || true; exit $$failed
endef

.PHONY: test-beside
test-beside: root browser compiler kube ## Run the tests that need no quiet machine
	$(call tests,beside,-p 2)

.PHONY: test-cluster
test-cluster: root compiler kube cluster ## Run the tests of a cluster with kubelets
	$(call tests,cluster,-p 1)

.PHONY: test-waiting
test-waiting: root compiler kube ## Run the tests that wait in namespaces for what is to happen
	$(call tests,waiting,-p 3)

.PHONY: test-light
test-light: root compiler kube ## Run the tests that carry traffic and leave the processors to others
	$(call tests,light,-p 4)

.PHONY: test-network
test-network: root compiler kube ## Run the tests that carry traffic in namespaces; nothing that computes may run
	$(call tests,network,-p 4)

.PHONY: test-alone
test-alone: root deps kube ## Run the tests that flood; nothing else may run
	$(call tests,alone,-p 1)

.PHONY: slowest
slowest: ## Say which tests of the last run took longest
	@compgen -G '_out/times-*.json' >/dev/null || { echo "no test has run yet: make test" >&2; exit 1; }
	@cat _out/times-*.json | $(tool) gotestsum tool slowest --num 40

.PHONY: timetable
timetable: ## Say what the last run of .ci/run did when
	@go run ./hack/timetable

.PHONY: vet
vet: ## Vet, and compile the tests of all packages
	@hack/progress.sh make "vetting" go vet $(PACKAGES)
	@hack/progress.sh make "compiling the tests" go list -export -test -f '{{if not .Name}}{{.Error}}{{end}}' $(PACKAGES)

.PHONY: compile
compile: ## Compile the tests of all packages, and vet what is generated: make lint vets everything else
	@hack/progress.sh make "compiling the tests" go list -export -test -f '{{if not .Name}}{{.Error}}{{end}}' $(PACKAGES)
	@hack/progress.sh make "vetting what is generated" go vet ./api/... ./bpf/... ./hack/bench/baseline

.PHONY: generate
generate: ## Generate deep copies, CRDs, roles, the API reference and the packet programs
	@hack/deps.sh generate
	$(tool) controller-gen object:headerFile=hack/boilerplate.go.txt crd paths=./api/... output:crd:dir=config/crd
	$(tool) controller-gen rbac:roleName=braid-controller,fileName=controller_role.yaml paths=./controllers/... output:rbac:dir=config/rbac
	$(tool) controller-gen rbac:roleName=braid-agent,fileName=agent_role.yaml paths=./agent/... output:rbac:dir=config/rbac
	$(tool) crd-ref-docs --source-path=api/v1alpha1 --config=hack/tools/crd-ref-docs.yaml --renderer=markdown --output-path=docs/api.md --max-depth=20 --log-level=ERROR
	@# The site's Markdown wants an empty line before a list.
	sed -i "s/^_\(Validation\|Appears in\):_$$/&\n/" docs/api.md
	hack/chart/sync.sh
	go generate ./bpf/... ./hack/bench/baseline

.PHONY: verify
verify: ## Fail when a generated file does not match its sources
	@hack/verify.sh

.PHONY: linter
linter: ## Build the linters into the cache
	@hack/lint/build.sh >/dev/null

.PHONY: lint
lint: ## Run the linters
	@linter=$$(hack/lint/build.sh) && "$$linter" run ./...
	@hack/security/check.sh all

.PHONY: vulnerabilities
vulnerabilities: ## Fail when a program can reach a known vulnerability; GOVULNDB names a copy of the database
	@hack/security/check.sh vulnerabilities

.PHONY: fmt
fmt: ## Format the Go files
	@linter=$$(hack/lint/build.sh) && "$$linter" fmt ./...

.PHONY: deps
deps: ## Install the packages that the lab needs
	@hack/deps.sh

.PHONY: browser
browser: ## Install these, and the browser that the tests of kubectl braid ui look with
	@hack/deps.sh browser

.PHONY: compiler
compiler: ## Install these, and what compiles packet programs: tests compile some as docs/programs.md says
	@hack/deps.sh generate

.PHONY: e2e
e2e: root compiler kube cluster ## Install the chart on a cluster with real kubelets and try it; PROVIDER=kind takes one of kind's, NETWORK=flannel has flanneld, NETWORK=calico CALICO=DIRECTORY Calico, NETWORK=cilium Cilium
	NETWORK=$(NETWORK) go test -count=1 -timeout 30m -v ./e2e/cluster

.PHONY: test-kernels
test-kernels: root deps ## Boot kernels of Debian in QEMU, test there, and write docs/kernels.md; ARGS=-help says more
	@mkdir -p _out/bin && go build -o _out/bin/kernels ./hack/kernels
	$(call with_args,_out/bin/kernels)

.PHONY: cluster
cluster: ## Build kubelet, containerd, Helm and the images of the e2e cluster into the cache
	@hack/cluster/build.sh >/dev/null
	@hack/helm/build.sh >/dev/null
	@hack/cluster/workload.sh >/dev/null

.PHONY: machines
machines: ## Install QEMU, and get the kernel and the programs of the tests' virtual machines into the cache
	@hack/kernels/tools.sh
	@hack/kernels/fetch.sh trixie >/dev/null
	@hack/lab/agent.sh trixie >/dev/null
	@hack/cluster/machine.sh >/dev/null

.PHONY: kube
kube: ## Download or build kube-apiserver, etcd and kubectl into the cache
	@hack/kube/build.sh >/dev/null

.PHONY: root
root:
	@((EUID == 0)) || { echo "make: this needs root, for network namespaces and BPF programs: run it with sudo, or as root" >&2; exit 1; }
