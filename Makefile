# The two commands of README.md are `make try` and `make test`.
SHELL      := /bin/bash
GO         ?= go
VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS    := -s -w -X main.version=$(VERSION)
PREFIX     ?= /usr/local
# The name under which the command is installed: Docker ships an unrelated sbx.
SBX_NAME   ?= sbx
export CGO_ENABLED ?= 0
export GOFLAGS     ?= -trimpath

.PHONY: all build try install install-units test test-unit test-race test-mutation test-gen test-tools test-kernels test-kernels-arm64 test-kernels-vagrant lint cross bench generate clean deps

all: build

build:
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/sbx ./cmd/sandboxd

# The main job: an untrusted command, confined, and the report of it.
try: build
	@dir=$$(mktemp -d) && cd $$dir && \
	$(CURDIR)/bin/sbx run -v -- sh -c 'echo "inside: wrote $$PWD/file" | tee file; echo "outside:"; echo x > ../escaped || true'; \
	rc=$$?; rm -rf $$dir; exit $$rc

install: build
	install -D -m 755 bin/sbx $(DESTDIR)$(PREFIX)/bin/$(SBX_NAME)
	install -D -m 755 bin/sandboxd $(DESTDIR)$(PREFIX)/bin/sandboxd

# The units of systemd, for every user and for the system, which starts none of them.
UNITS ?= /usr/local/lib
install-units:
	@set -e; for f in user/sandboxd.socket user/sandboxd.service system/sandboxd.socket system/sandboxd.service; do \
	  mkdir -p $(DESTDIR)$(UNITS)/systemd/$${f%/*}; \
	  sed 's|/usr/local/bin/|$(PREFIX)/bin/|' contrib/systemd/$$f >$(DESTDIR)$(UNITS)/systemd/$$f; done
	install -D -m 644 contrib/systemd/system/sysusers.conf $(DESTDIR)$(UNITS)/sysusers.d/sandboxd.conf

# Installs what tests need, on Debian and Ubuntu, when run by root; else names it.
deps:
	@test/deps.sh

test: deps build
	test/run.sh

test-unit:
	$(GO) test ./...

test-race:
	CGO_ENABLED=1 $(GO) test -race ./...

# The suite must go red when confinement is switched off.
test-mutation:
	$(GO) test ./backend/landlock -run ^TestMutation -mutation

# The committed filters are what libseccomp makes today (needs gcc, libseccomp-dev).
test-gen:
	CGO_ENABLED=1 $(GO) test -tags seccompgen ./internal/seccomp/...

# Every claim on every kernel, in virtual machines; writes docs/kernel-support.md.
# For a part of it: make test-kernels KERNELS_FLAGS='--only 6.1,7.3'
KERNELS_CACHE ?=
KERNELS_FLAGS ?= --set all
test-kernels:
	@test/deps.sh kernels
	$(GO) run ./test/kernels $(if $(KERNELS_CACHE),--cache $(KERNELS_CACHE)) $(KERNELS_FLAGS) --doc docs/kernel-support.md

# The machines of arm64, which the whole set leaves out: it takes long enough.
test-kernels-arm64:
	@test/deps.sh kernels arm64
	$(GO) run ./test/kernels $(if $(KERNELS_CACHE),--cache $(KERNELS_CACHE)) --set arm64 --limit 900 --doc docs/kernel-support.md

# The same tests in the machines of the Vagrantfile.
test-kernels-vagrant:
	test/vm/vagrant.sh

test-tools: build
	SBX=$(CURDIR)/bin/sbx test/tools/run.sh

generate:
	$(GO) generate ./...

lint:
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofmt would change: $$out"; exit 1; }
	GOOS=linux $(GO) vet ./...
	GOOS=darwin $(GO) vet ./...
	@for s in $$(git ls-files '*.sh') .ci/run; do bash -n $$s || exit 1; done
	@if command -v ruby >/dev/null; then ruby -c Vagrantfile >/dev/null; else echo "SKIP syntax of Vagrantfile: no ruby"; test -z "$$SBX_MUST_RUN"; fi

cross:
	@for t in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64; do \
	  echo "build $$t"; CGO_ENABLED=0 GOOS=$${t%/*} GOARCH=$${t#*/} $(GO) build -o /dev/null ./cmd/sbx || exit 1; \
	  CGO_ENABLED=0 GOOS=$${t%/*} GOARCH=$${t#*/} $(GO) build -o /dev/null ./cmd/sandboxd || exit 1; \
	  CGO_ENABLED=0 GOOS=$${t%/*} GOARCH=$${t#*/} $(GO) build ./... || exit 1; done

bench: build
	bench/run.sh

clean:
	rm -rf bin
