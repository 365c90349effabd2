#!/usr/bin/env bash
# Runs the tests in every machine of the Vagrantfile, or in those of $BOXES, one
# after the other, and destroys each. Ends with 'N passed, N failed, N skipped'.
set -u
cd "$(dirname "$0")/../.." || exit 2
command -v vagrant >/dev/null || { echo "vagrant is not installed; \`make test-kernels\` needs QEMU only" >&2; exit 2; }
out=$(mktemp -d) || exit 2
trap 'rm -rf "$out"' EXIT
export SBX_VM_BIN=$out/vm
test/vm/build.sh "$SBX_VM_BIN" || exit 1
boxes=${BOXES:-$(sed -n 's/^  "\([^"]*\)" *=> .*/\1/p' Vagrantfile)}
passed=0 failed=0 skipped=0
for box in $boxes; do
  echo "== $box"
  # A provisioner that fails makes `up` fail.
  if vagrant up --provision "$box" 2>&1 | tee "$out/$box.log"; [ "${PIPESTATUS[0]}" = 0 ]; then ok=1; else ok=0; fi
  line=$(grep -aoE '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped' "$out/$box.log" | tail -n 1)
  read -r p _ f _ s _ <<<"${line:-0 passed, 1 failed, 0 skipped}"
  [ $ok = 0 ] && [ "$f" = 0 ] && f=1
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  vagrant destroy -f "$box"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
