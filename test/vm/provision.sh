#!/bin/sh
# Prepares a virtual machine for test/vm/run.sh: the programs that tests use
# beside their own. Debian, Ubuntu, Fedora and the RHEL family; run it as root.
set -eu
if command -v apt-get >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get -o DPkg::Lock::Timeout=300 update -q >/dev/null
  apt-get -o DPkg::Lock::Timeout=300 install -qy --no-install-recommends bash python3 bubblewrap strace openssh-client util-linux >/dev/null
elif command -v dnf >/dev/null; then
  dnf install -qy bash python3 bubblewrap strace openssh-clients util-linux >/dev/null
else
  echo "provision: neither apt-get nor dnf is here: install bash, python3, bubblewrap, strace, openssh and util-linux" >&2
  exit 1
fi
# Ubuntu's restriction is what its users have, whatever the box's maker chose.
restrict=/proc/sys/kernel/apparmor_restrict_unprivileged_userns
if [ -e "$restrict" ]; then
  echo 1 > "$restrict"
  echo "unprivileged user namespaces are restricted by AppArmor here"
fi
