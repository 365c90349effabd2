#!/usr/bin/env bash
# run.sh DIR [USER]: runs what build.sh made, as root if this is root, and as USER
# (default: nobody). TESTS names some of its tests only. Ends with 'N passed, N failed, N skipped'.
set -u
dir=$(cd "${1:?usage: run.sh DIR [USER]}" && pwd) || exit 2
user=${2:-nobody}
passed=0 failed=0 skipped=0
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cp -r "$dir" "$work/bin" && chmod -R a+rX "$work/bin" || exit 2 # where every user can read it

as() { # WHO COMMAND...
  local who=$1 home=$work/home-$1; shift
  mkdir -p "$home/work"
  if [ "$who" = "$(id -un)" ]; then
    (cd "$home/work" && exec env -i HOME="$home" USER="$who" LANG=C.UTF-8 PATH="$work/bin:/usr/local/bin:/usr/bin:/bin" "$@")
  else
    chown -R "$who" "$home"
    (cd "$home/work" && exec setpriv --reuid "$(id -u "$who")" --regid "$(id -g "$who")" --clear-groups \
      env -i HOME="$home" USER="$who" LANG=C.UTF-8 PATH="$work/bin:/usr/local/bin:/usr/bin:/bin" "$@")
  fi
}

check() { # NAME COMMAND...: one check, its output shown if it fails
  local name=$1; shift
  if "$@" >"$work/out" 2>&1; then passed=$((passed + 1)); echo "ok   $name"
  else failed=$((failed + 1)); echo "FAIL $name (status $?)"; tail -n 40 "$work/out"; fi
}

tests() { # WHO NAME
  local who=$1 name=$2 rc
  (as "$who" timeout 1200 sh -c "cd '$work/bin/tests/$name' && exec ./test -test.v" >"$work/out" 2>&1); rc=$?
  local p f s
  p=$(grep -c '^ *--- PASS' "$work/out"); f=$(grep -c '^ *--- FAIL' "$work/out"); s=$(grep -c '^ *--- SKIP' "$work/out")
  [ $rc != 0 ] && [ "$f" = 0 ] && f=1 # it ended without saying which
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  echo "$([ $rc = 0 ] && echo ok || echo FAIL)   $name as $who: $p passed, $f failed, $s skipped"
  [ $rc = 0 ] || grep -B1 -A12 -E '^ *--- FAIL|^panic' "$work/out" | head -n 120
}

who=("$(id -un)"); [ "$(id -u)" = 0 ] && [ "$user" != root ] && who+=("$user")
echo "kernel $(uname -r), $(. /etc/os-release 2>/dev/null && echo "${PRETTY_NAME:-unknown system}")"
for w in "${who[@]}"; do
  check "features as $w" as "$w" sbx features
  usable=$(as "$w" sbx features --json | grep -c '"usable": true')
  if [ "$usable" = 0 ]; then # then nothing may run
    check "refusal as $w" as "$w" sh -c 'sbx run -- touch ran; s=$?; [ $s = 125 ] && [ ! -e ran ]'
    skipped=$((skipped + 1)); echo "skip doctor and tests as $w: no backend is usable here"
    continue
  fi
  check "doctor as $w" as "$w" sbx doctor
  for t in ${TESTS:-$(ls "$work/bin/tests")}; do tests "$w" "$t"; done
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
