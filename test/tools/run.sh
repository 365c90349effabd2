#!/usr/bin/env bash
# run.sh [-u USER] [-t SECONDS] [--self-test] [TOOL ...]
#
# Runs real developers' tools inside `sbx run --mode workspace-write`, as this
# user or as USER, against $SBX (default: sbx on PATH). Each tool gives two
# results: NAME, that it works inside, and "NAME confined", that beside it, in
# the same worker, a write outside, a read of a planted ~/.ssh/id_test, a TCP
# connect and a UDP send to local listeners had no effect. The second is judged
# from outside, by effect, never by what the worker prints.
#
# Prints PASS, FAIL or SKIP with the name, and why; the last line is
# "N passed, N failed, N skipped". Exits 1 if any failed, 2 if it cannot run.
#
# --self-test runs all this with a stand-in that merely executes the command:
# every tool must work, and every "confined" must fail; what does is PASS.
set -u

here=$(cd "$(dirname "$0")" && pwd)
user='' limit=120 selftest=0 wanted=()
while [ $# -gt 0 ]; do
  case $1 in
    -u) user=${2:?-u needs a user}; shift ;;
    -t) limit=${2:?-t needs seconds}; shift ;;
    --self-test) selftest=1 ;;
    -*) echo "run.sh: unknown option $1" >&2; exit 2 ;;
    *) wanted+=("$1") ;;
  esac
  shift
done

work=$(mktemp -d /var/tmp/sbx-tools.XXXXXX) || exit 2
chmod 755 "$work"
listener=''
cleanup() {
  [ -n "$listener" ] && kill "$listener" 2>/dev/null
  chmod -R u+rwX "$work" 2>/dev/null # a module cache is read-only
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
mkdir "$work"/{bin,home,home/.ssh,outside,ws,out,prep}

# The launcher under test, where USER can reach it.
if [ "$selftest" = 1 ]; then
  cp "$here/stand-in.sh" "$work/bin/sbx" && chmod 755 "$work/bin/sbx"
else
  SBX=${SBX:-$(command -v sbx || true)}
  [ -x "${SBX:-}" ] || { echo "run.sh: no sbx: set SBX=/path/to/sbx" >&2; exit 2; }
  cp "$SBX" "$work/bin/sbx" && chmod 755 "$work/bin/sbx"
fi

secret=secret-$RANDOM$RANDOM$RANDOM
echo "$secret" >"$work/home/.ssh/id_test"

as=()
if [ -n "$user" ]; then
  id -u "$user" >/dev/null || exit 2
  chown -R "$user" "$work"/{home,outside,ws}
  as=(setpriv --reuid "$(id -u "$user")" --regid "$(id -g "$user")" --clear-groups)
fi

# Root's toolchains lie in root's home; nobody else can read them.
tools=/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
[ -z "$user" ] && [ -n "${HOME:-}" ] && tools=$HOME/.cargo/bin:$HOME/.pyenv/shims:$tools
go=$(command -v go || true)
[ -n "$go" ] && tools=$(dirname "$go"):$tools
base=(env -i "HOME=$work/home" "USER=${user:-$(id -un)}" "LOGNAME=${user:-$(id -un)}" LANG=C.UTF-8 TERM=xterm SHELL=/bin/bash
  "PATH=$work/bin:$tools")
[ -d "${RUSTUP_HOME:-${HOME:-/}/.rustup}" ] && base+=("RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup}" "CARGO_HOME=${CARGO_HOME:-$HOME/.cargo}")
[ -d "${PYENV_ROOT:-${HOME:-/}/.pyenv}" ] && base+=("PYENV_ROOT=${PYENV_ROOT:-$HOME/.pyenv}")
[ -n "${PYENV_VERSION:-}" ] && base+=("PYENV_VERSION=$PYENV_VERSION")
outside() { (cd "$work/home" && exec "${as[@]}" "${base[@]}" "$@"); }

# has tells whether the user can run all of the commands.
has() {
  local c
  for c in "$@"; do
    outside bash -c 'command -v "$1" >/dev/null && { case $1 in cargo|rustc) "$1" --version >/dev/null 2>&1;; esac; }' _ "$c" || { why="no $c for this user"; return 1; }
  done
}

# --- listeners ---------------------------------------------------------------
/usr/bin/python3 "$here/listen.py" "$work/ports" "$work/heard" & listener=$!
for _ in $(seq 50); do [ -s "$work/ports" ] && break; sleep 0.1; done
read -r tcp udp <"$work/ports" || { echo "run.sh: the listeners did not start" >&2; exit 2; }

# --- running one tool --------------------------------------------------------
passed=0 failed=0 skipped=0
pass() { passed=$((passed + 1)); echo "PASS $1"; }
fail() { failed=$((failed + 1)); echo "FAIL $1: $2"; }
skip() { skipped=$((skipped + 1)); echo "SKIP $1: $2"; }

# escaped says what came out of the worker of a tool.
escaped() {
  local what=()
  [ -e "$work/outside/$1" ] && what+=("a file outside was written")
  grep -rqaF "$secret" "$work/ws/$1" "$work/out/$1" 2>/dev/null && what+=("the planted key was read")
  grep -qxF "tcp $1" "$work/heard" && what+=("the TCP listener heard it")
  grep -qxF "udp $1" "$work/heard" && what+=("the UDP listener heard it")
  local IFS=,
  echo "${what[*]}"
}

# judge NAME OK WHY: with --self-test, an escape is what must be seen: all four.
judge() {
  local name=$1 escapes
  sleep 0.2 # the listeners write what they heard
  escapes=$(escaped "$name")
  if [ -e "$work/ws/$name/works" ]; then pass "$name"; else
    fail "$name" "$(tail -n 3 "$work/out/$name" | tr '\n' ' ' | cut -c1-240)"
  fi
  if [ "$selftest" = 1 ]; then
    case $escapes in
      *written*read*TCP*UDP*) pass "$name confined (fails without a sandbox, as it must)" ;;
      *) fail "$name confined" "the stand-in confines nothing, yet only this is seen: $escapes" ;;
    esac
  elif [ ! -e "$work/ws/$name/tried" ]; then fail "$name confined" "the attempts were not made"
  elif [ -z "$escapes" ]; then pass "$name confined"
  else fail "$name confined" "$escapes"; fi
}

# inside NAME [FLAG...]: runs tools/NAME.sh in a workspace of its own.
inside() {
  local name=$1 ws=$work/ws/$1; shift
  {
    echo "cd $ws && NAME=$name OUTSIDE=$work/outside KEY=$work/home/.ssh/id_test TCP=$tcp UDP=$udp"
    echo '('
    echo 'set -eu'
    cat "$here/tools/$name.sh"
    echo ') && touch works'
    cat "$here/attempts.sh"
  } >"$ws/.inside"
  [ -n "$user" ] && chown -R "$user" "$ws"
  (cd "$ws" && exec timeout -k 5 "$limit" "${as[@]}" "${base[@]}" "$work/bin/sbx" run --mode workspace-write --workspace "$ws" "$@" -- \
    bash "$ws/.inside") </dev/null >"$work/out/$name" 2>&1
  judge "$name"
}

# --- what some tools need from outside the sandbox ---------------------------

# A module cache of its own with just what the module needs, filled from the
# host's without the network.
prepare_go() {
  local cache
  cache=$(go env GOMODCACHE 2>/dev/null) || return 1
  [ -d "$cache/cache/download" ] || { why="no module cache to copy from"; return 1; }
  cp -r "$here/data/go/." "$work/prep/go" || return 1
  (cd "$work/prep/go" && GOMODCACHE=$work/gomod GOPROXY=file://$cache/cache/download GOSUMDB=off GOFLAGS=-mod=mod GOCACHE=$work/prep/cache \
    go mod tidy >/dev/null 2>"$work/out/go.prepare") || { why="the host's module cache lacks a module: $(tail -n 1 "$work/out/go.prepare")"; return 1; }
  chmod -R a+rX "$work/gomod"
  rm -rf "$work/prep/cache"
  cp -r "$work/prep/go/." "$work/ws/go"
}

declare -A needs=([git]=git [go]=go [node]='node npm' [python]=python3 [cargo]='cargo rustc' [java]='java javac' [make]='gcc make'
  [bash]=bash [find]='find xargs' [tar]='tar gzip' [sort]=sort [tmux]=tmux [script]=script [sqlite]=sqlite3)
order=(git go node python cargo java make bash find tar sort tmux script sqlite)

for name in "${order[@]}"; do
  [ ${#wanted[@]} -gt 0 ] && [[ " ${wanted[*]} " != *" $name "* ]] && continue
  why=''
  # shellcheck disable=SC2086 # a list of words
  has ${needs[$name]} || { skip "$name" "$why"; continue; }
  mkdir "$work/ws/$name"
  [ -d "$here/data/$name" ] && cp -r "$here/data/$name/." "$work/ws/$name"
  flags=()
  if [ "$name" = go ]; then
    prepare_go || { skip "$name" "${why:-no go here}"; continue; }
    flags=(--readable "$work/gomod" --env "GOMODCACHE=$work/gomod" --env GOPROXY=off --env GOFLAGS=-mod=mod --env GOSUMDB=off)
  fi
  inside "$name" "${flags[@]}"
done

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
