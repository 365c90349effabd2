#!/usr/bin/env bash
# All tests: as the caller, and as root also as an ordinary user. Each part is
# named before it runs, so that a failure is seen where it is.
set -u
# Signals that a caller ignores (nohup) stay ignored in every child, and tests
# send them: start from the defaults.
if [ -z "${TEST_SIGNALS_RESET:-}" ] && env --default-signal true 2>/dev/null; then
  TEST_SIGNALS_RESET=1 exec env --default-signal "$0" "$@"
fi
cd "$(dirname "$0")/.." || exit 1
failed=() ; part() { echo; echo "== $1"; shift; "$@" || { failed+=("$1 ${*: -1}"); echo "FAILED: $*"; }; }
export GOFLAGS="${GOFLAGS:-} -buildvcs=false"
check=$(mktemp -d) || exit 1
chmod 755 "$check"
trap 'chmod -R u+rwX "$check"; rm -rf "$check"' EXIT
go build -o "$check/skipcheck" ./test/skipcheck || exit 1

gotest() { go test -json "$@" | "$check/skipcheck" -allow test/skips.txt; return $((PIPESTATUS[0] | PIPESTATUS[1])); }

part "format and vet" make -s lint
part "builds for every system" make -s cross
part "tests" gotest -count=1 ./...
# Ways to end, by chance; the seed is in the log if it fails.
part "2,000 launches" env SBX_TEST_ENDINGS=2000 go test -count=1 -run '^TestEndings' ./backend/landlock
if command -v gcc >/dev/null; then
  part "tests under the race detector" env CGO_ENABLED=1 bash -c 'go test -race ./policy ./backend/... ./capture ./client ./daemon/... ./internal/... ./report ./cmd/...'
else
  echo "SKIP race detector: no gcc"; [ "${SBX_MUST_RUN:-}" = 1 ] && failed+=("race: no gcc")
fi
if [ -e /usr/include/seccomp.h ] && [ "$(go env GOARCH)" = amd64 ]; then
  part "committed filters are libseccomp's" make -s test-gen
else
  echo "SKIP filter generation: no libseccomp-dev"; [ "${SBX_MUST_RUN:-}" = 1 ] && failed+=("filters: no libseccomp-dev")
fi
part "mutation: confinement off makes the suite red" make -s test-mutation
part "real tools" env SBX="$PWD/bin/sbx" test/tools/run.sh

# As root, everything once more as an ordinary user, from prebuilt binaries:
# that user need not be able to read this tree or to run Go.
if [ "$(id -u)" = 0 ]; then
  user=nobody
  as() { (cd "$1" && shift && exec setpriv --reuid "$(id -u $user)" --regid "$(id -g $user)" --clear-groups env -i HOME="$check/home" USER=$user LOGNAME=$user LANG=C.UTF-8 PATH=/usr/local/bin:/usr/bin:/bin SBX_MUST_RUN="${SBX_MUST_RUN:-}" SBX_TEST_ENDINGS=2000 "$@"); }
  mkdir "$check/home" && chown $user "$check/home"
  cp bin/sbx bin/sandboxd "$check/" # found beside the test binaries, as the next
  go build -o "$check/probe" ./backend/backendtest/probe || failed+=("building the probe") # found beside the test binaries
  # The sources, as some tests compare them and the documentation.
  mkdir "$check/src" && git archive HEAD 2>/dev/null | tar -x -C "$check/src" || cp -r . "$check/src"
  git diff --quiet HEAD -- 2>/dev/null || git ls-files -m -o --exclude-standard | tar -c -T - | tar -x -C "$check/src"
  chown -R $user "$check/src"
  for pkg in backend/landlock internal/sys internal/rootfs internal/hold internal/proxy internal/supervise internal/seccomp internal/confine internal/launch internal/listen internal/quota internal/run internal/scratch internal/stream internal/audit capture profiles client cmd/sbx internal/terminal cmd/sandboxd; do
    name=${pkg//\//-}
    if ! go test -c -o "$check/$name.test" "./$pkg"; then failed+=("building $pkg"); continue; fi
    [ -e "$check/$name.test" ] || continue # no tests
    usertest() { as "$check/src/$1" "$check/$name.test" -test.v=test2json 2>&1 | go tool test2json -p "$1" | "$check/skipcheck" -allow test/skips.txt,test/skips-user.txt; return $((PIPESTATUS[0] | PIPESTATUS[2])); }
    part "as an ordinary user: $pkg" usertest "$pkg"
  done
  part "real tools, as an ordinary user" env SBX="$check/sbx" test/tools/run.sh -u $user
fi

echo
if [ ${#failed[@]} -gt 0 ]; then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
echo "all parts passed"
