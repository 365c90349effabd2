#!/usr/bin/env bash
# build.sh OUT: what a machine without Go needs to run the tests: the command,
# and the compiled tests with their data.
set -eu
cd "$(dirname "$0")/../.."
out=${1:?usage: build.sh OUT}
mkdir -p "$out"
export CGO_ENABLED=0 GOOS=linux GOFLAGS="${GOFLAGS:-} -buildvcs=false"
go build -trimpath -o "$out/sbx" ./cmd/sbx
for pkg in backend/landlock internal/supervise internal/seccomp; do
  to=$out/tests/${pkg//\//-}
  mkdir -p "$to"
  go test -c -trimpath -o "$to/test" "./$pkg"
  if [ -d "$pkg/testdata" ]; then cp -r "$pkg/testdata" "$to/"; fi
done
go build -trimpath -o "$out/tests/backend-landlock/probe" ./backend/backendtest/probe # its tests look beside themselves
