#!/usr/bin/env bash
# What the tests use beside Go, with `kernels` what the kernel matrix uses, and with
# `kernels arm64` what its arm64 machines use. As root on Debian or Ubuntu what is
# missing is installed; otherwise it is named.
set -eu
packages=() ; need() { command -v "$1" >/dev/null 2>&1 || packages+=("$2"); }
need gcc gcc; need make make; need git git; need python3 python3; need setpriv util-linux; need script bsdutils; need tmux tmux
need ssh-agent openssh-client; need strace strace; need bwrap bubblewrap; need hyperfine hyperfine
[ -e /usr/include/seccomp.h ] || packages+=(libseccomp-dev)
[ -e /usr/include/stdlib.h ] || packages+=(libc6-dev)
if command -v python3 >/dev/null && ! python3 -c 'import venv, ensurepip' 2>/dev/null; then packages+=(python3-venv); fi
if [ "${1:-}" = kernels ]; then
  need qemu-system-x86_64 qemu-system-x86; need busybox busybox-static; need xz xz-utils; need zstd zstd; need ruby ruby
  [ "${2:-}" != arm64 ] || need qemu-system-aarch64 qemu-system-arm
  [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || packages+=(debian-archive-keyring)
fi
[ ${#packages[@]} = 0 ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "installing: ${packages[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -o DPkg::Lock::Timeout=500 update -q >/dev/null
  apt-get -o DPkg::Lock::Timeout=500 install -qy --no-install-recommends "${packages[@]}" >/dev/null
else
  echo "tests want these packages, and skip by name what needs a missing one: ${packages[*]}" >&2
  echo "  sudo apt-get install --no-install-recommends ${packages[*]}" >&2
fi
