package backendtest

import "sandboxd/policy"

// Each row has a directory of its own in the workspace, {mine}, and one
// outside, {there}; what lies in them is in fixture_linux.go.

// writeRows attempt to change what lies outside the workspace.
func writeRows() []Row {
	w := func(catalogue int, name, op string) Row { return deny(catalogue, policy.FSWrite, name, op, "EACCES") }
	x := func(catalogue int, name, op string) Row {
		return deny(catalogue, policy.FSWrite, name, op, "EXDEV").inReadOnly("EACCES")
	}
	cut := func(catalogue int, name, op string) Row {
		return deny(catalogue, policy.FSTruncate, name, op, "EACCES")
	}
	meta := func(name, op string) Row { return gap(1, policy.FSMetadata, name, op, "EACCES") }
	return []Row{
		w(1, "create outside", "create {there}/new"),
		w(1, "append outside", "append {there}/victim"),
		w(1, "overwrite outside", "overwrite {there}/victim"),
		w(1, "read-write outside", "read-write {there}/victim"),
		w(1, "unlink outside", "unlink {there}/victim"),
		w(1, "rmdir outside", "rmdir {there}/dir"),
		w(1, "mkdir outside", "mkdir {there}/new"),
		w(1, "fifo outside", "mkfifo {there}/new"),
		w(1, "socket file outside", "mksock {there}/new"),
		w(1, "mknod regular outside", "mkreg {there}/new"),
		deny(1, policy.FSWrite, "character device outside", "mkchr {there}/new", "EACCES|EPERM").needing("CAP_MKNOD"),
		deny(1, policy.FSWrite, "character device in the workspace", "mkchr {mine}/new", "EACCES|EPERM").needing("CAP_MKNOD").elsewhere(),
		deny(1, policy.FSWrite, "block device in the workspace", "mkblk {mine}/new", "EACCES|EPERM").needing("CAP_MKNOD").elsewhere(),
		w(1, "symlink outside", "symlink target {there}/new"),
		w(1, "bind a socket outside", "unix-bind {there}/new"),

		w(2, "creat outside", "creat {there}/new"),
		w(2, "old open outside", "old-open {there}/new"),
		w(2, "old unlink outside", "old-unlink {there}/victim"),
		w(2, "openat2 create outside", "openat2-create {there}/new"),
		w(2, "openat2 write outside", "openat2-write {there}/victim"),
		w(2, "O_TMPFILE outside", "tmpfile-link {there} {there}/new"),
		deny(2, policy.FSWrite, "O_TMPFILE linked outside", "tmpfile-link {mine} {there}/new", "EACCES|EXDEV"),
		w(2, "copy_file_range outside", "copy-range {mine}/file {there}/victim"),
		w(2, "sendfile outside", "sendfile {mine}/file {there}/victim"),
		w(2, "splice outside", "splice {there}/victim"),
		w(2, "fallocate outside", "fallocate {there}/victim"),
		cut(2, "open for writing with O_TRUNC outside", "open-truncate {there}/victim"),
		cut(2, "open for reading with O_TRUNC outside", "readonly-truncate {there}/victim"),
		cut(2, "openat2 for reading with O_TRUNC outside", "openat2-truncate {there}/victim"),
		cut(2, "truncate outside", "truncate {there}/victim"),
		cut(2, "truncate through a symlink", "truncate {mine}/link"),

		w(3, "create in /var/tmp", "create /var/tmp/{unique}-{token}").needing("/var/tmp").elsewhere(),
		w(3, "create in /tmp", "create /tmp/{unique}-{token}").elsewhere(),
		w(3, "create in /dev/shm", "create /dev/shm/{unique}-{token}").elsewhere(),
		w(3, "oom score of a host process", "overwrite /proc/{host}/oom_score_adj").naturally("EINVAL").elsewhere(),

		w(3, "open a sysctl for writing", "open-rdwr /proc/sys/vm/swappiness").needing("root").elsewhere(),
		w(3, "open the kernel log for writing", "open-rdwr /dev/kmsg").needing("root").elsewhere(),
		w(3, "open the sysrq trigger", "openable-write /proc/sysrq-trigger").needing("root").elsewhere(),
		w(3, "open the console", "open-rdwr /dev/console").needing("root and a console").elsewhere(),

		w(4, "rename out of the workspace", "rename {mine}/file {there}/new"),
		w(4, "rename over a file outside", "rename {mine}/file {there}/victim"),
		w(4, "old rename out of the workspace", "old-rename {mine}/file {there}/new"),
		w(4, "rename into the workspace", "rename {there}/victim {mine}/new"),
		w(4, "rename a directory into the workspace", "rename {there}/dir {mine}/new"),
		w(4, "rename a directory out of the workspace", "rename {mine}/dir {there}/new"),
		w(4, "rename within outside", "rename {there}/victim {there}/new"),
		w(4, "exchange with outside", "exchange {mine}/file {there}/victim"),
		w(4, "exchange from outside", "exchange {there}/victim {mine}/file"),
		w(4, "whiteout outside", "whiteout {there}/victim {there}/new").needing("CAP_MKNOD or a newer kernel"),
		w(4, "rename of the workspace itself", "rename {mine}/dir {root}/moved").elsewhere(),

		x(5, "hard link to a file outside", "link {there}/victim {mine}/new"),
		x(5, "old hard link to a file outside", "old-link {there}/victim {mine}/new"),
		deny(5, policy.FSWrite, "hard link out of the workspace", "link {mine}/file {there}/new", "EACCES|EXDEV"),
		x(5, "write through a new hard link", "link-overwrite {there}/victim {mine}/new"),
		w(5, "hard link within outside", "link {there}/victim {there}/new"),
		gap(5, policy.FSHardlink, "write through a hard link that existed", "overwrite {mine}/hard", "EACCES").writing(),

		w(6, "overwrite through a symlink", "overwrite {mine}/link"),
		w(6, "overwrite through a chain of symlinks", "overwrite {mine}/chain"),
		w(6, "create through a symlinked directory", "create {mine}/linkdir/new"),
		w(6, "unlink through a symlinked directory", "unlink {mine}/linkdir/victim"),
		w(6, "overwrite by ..", "overwrite {mine}/../../outside/{token}/victim"),
		w(6, "overwrite by .. relative to the workspace", "overwrite ../outside/{token}/victim"),
		w(6, "overwrite by /proc/self/root", "overwrite /proc/self/root{there}/victim"),
		w(6, "overwrite by /proc/self/cwd/..", "overwrite /proc/self/cwd/../outside/{token}/victim"),
		w(6, "create by /proc/self/root", "create /proc/self/root{there}/new"),
		w(6, "overwrite by a directory handle", "dirfd-overwrite {there} victim"),
		w(6, "overwrite by a handle of the root", "dirfd-overwrite / .{there}/victim"),
		w(6, "reopen a handle by /proc/self/fd", "reopen-overwrite /proc/self/fd {there}/victim"),
		w(6, "reopen a handle by /dev/fd", "reopen-overwrite /dev/fd {there}/victim"),
		w(6, "reopen a handle by /proc/thread-self/fd", "reopen-overwrite /proc/thread-self/fd {there}/victim"),
		w(6, "reopen the descriptor of a host process", "overwrite /proc/{host}/fd/{hostfd}").elsewhere(),
		w(6, "overwrite by the root of a host process", "overwrite /proc/{host}/root{there}/victim"),
		w(6, "overwrite by the cwd of a host process", "overwrite /proc/{host}/cwd/outside/{token}/victim"),

		w(7, "create an odd name outside", "create {there}/{oddname}"),
		w(8, "create in a directory with the workspace's prefix", "create {ws}-evil/new-{token}").elsewhere(),
		w(8, "create beside the workspace", "create {root}/new-{token}").elsewhere(),

		meta("chmod outside", "chmod {there}/victim"),
		meta("chown outside", "chown {there}/victim"),
		meta("utimes outside", "utimes {there}/victim"),
		meta("setxattr outside", "setxattr {there}/victim").needing("user extended attributes"),
		meta("stat outside", "stat {there}/victim"),
		meta("chdir outside", "chdir {there}"),
		meta("watch outside", "inotify {there}/victim"),
	}
}

// workspaceRows must work where the mode says so.
func workspaceRows() []Row {
	return []Row{
		work(1, "create in the workspace", "create {mine}/new", "EACCES"),
		work(1, "append in the workspace", "append {mine}/file", "EACCES"),
		work(1, "overwrite in the workspace", "overwrite {mine}/file", "EACCES"),
		work(1, "unlink in the workspace", "unlink {mine}/file", "EACCES"),
		work(1, "old unlink in the workspace", "old-unlink {mine}/file", "EACCES"),
		work(1, "mkdir in the workspace", "mkdir {mine}/new", "EACCES"),
		work(1, "rmdir in the workspace", "rmdir {mine}/dir", "EACCES"),
		work(1, "fifo in the workspace", "mkfifo {mine}/new", "EACCES"),
		work(1, "symlink in the workspace", "symlink {there}/victim {mine}/new", "EACCES"),
		work(2, "truncate in the workspace", "truncate {mine}/file", "EACCES"),
		work(2, "O_TRUNC in the workspace", "open-truncate {mine}/file", "EACCES"),
		work(2, "read-only O_TRUNC in the workspace", "readonly-truncate {mine}/file", "EACCES"),
		work(2, "openat2 in the workspace", "openat2-create {mine}/new", "EACCES"),
		work(2, "creat in the workspace", "creat {mine}/new", "EACCES"),
		work(2, "O_TMPFILE in the workspace", "tmpfile-link {mine} {mine}/new", "EACCES"),
		work(4, "rename in the workspace", "rename {mine}/file {mine}/new", "EACCES"),
		work(4, "rename across directories of the workspace", "rename {mine}/file {mine}/dir/new", "EACCES|EXDEV"),
		work(4, "exchange in the workspace", "exchange {mine}/file {mine}/dir", "EACCES"),
		work(5, "link across directories of the workspace", "link {mine}/file {mine}/dir/new", "EACCES|EXDEV"),
		work(5, "old link in the workspace", "old-link {mine}/file {mine}/new", "EACCES"),
		work(6, "reopen a handle in the workspace", "reopen-overwrite /proc/self/fd {mine}/file", "EACCES"),
		work(7, "create an odd name in the workspace", "create {mine}/{oddname}", "EACCES"),
		allow(18, policy.FSRead, "read what may be read", "read {data}/file"),
		deny(1, policy.FSWrite, "overwrite what may only be read", "append {data}/file", "EACCES").elsewhere(),
		deny(2, policy.FSTruncate, "read-only O_TRUNC of what may only be read", "readonly-truncate {data}/file", "EACCES").elsewhere(),
		allow(18, policy.FSRead, "read in the workspace", "read {mine}/file"),
		allow(18, policy.FSRead, "list the workspace", "readdir {mine}"),
		allow(18, policy.FSRead, "read a system file", "read /etc/passwd"),
		allow(18, policy.FSRead, "read its own /proc", "read /proc/self/status"),
		allow(18, policy.FSExec, "run a system program", "exec /usr/bin/true"),
		allow(3, policy.FSWrite, "write to /dev/null", "open-truncate /dev/null"),
		allow(3, policy.FSWrite, "create in the private temp", "create-in TMPDIR"),
	}
}

// readRows attempt to read what is not granted.
func readRows() []Row {
	r := func(catalogue int, name, op string) Row { return deny(catalogue, policy.FSRead, name, op, "EACCES") }
	strangers := "ptrace access to processes of the same user"
	return []Row{
		r(18, "read outside", "read {there}/secret"),
		r(18, "list a directory outside", "readdir {there}"),
		r(18, "list the root", "readdir /"),
		r(18, "list the parent of the workspace", "readdir {root}"),
		r(18, "map a file outside", "mmap {there}/secret"),
		r(18, "read by /proc/self/root", "read /proc/self/root{there}/secret"),
		r(18, "read by the root of process 1", "read /proc/1/root{there}/secret").needing("access to process 1"),
		r(18, "read by /proc/self/cwd/..", "read /proc/self/cwd/../outside/{token}/secret"),
		r(18, "read by ..", "read ../outside/{token}/secret"),
		r(18, "read by a directory handle", "read-dirfd {there} secret"),
		r(18, "reopen a handle for reading", "read-reopen /proc/self/fd {there}/secret"),
		r(18, "reopen a handle for reading by /dev/fd", "read-reopen /dev/fd {there}/secret"),
		r(18, "read through a symlink", "read {mine}/secretlink"),
		deny(18, policy.FSRead, "read through a new hard link", "link-read {there}/secret {mine}/new", "EXDEV").inReadOnly("EACCES"),
		deny(18, policy.FSRead, "move a secret into the workspace", "rename {there}/secret {mine}/new", "EACCES"),
		r(8, "read in a directory with the workspace's prefix", "read {ws}-evil/secret"),
		deny(18, policy.FSRead, "read by file handle", "open-handle2 {there}/secret", "EPERM").needing("CAP_DAC_READ_SEARCH"),
		deny(18, policy.FSRead, "empty file handle", "open-handle", "EPERM").naturally("EINVAL").needing("CAP_DAC_READ_SEARCH, on older kernels"),
		gap(5, policy.FSHardlink, "read through a hard link that existed", "read {mine}/hard", "EACCES"),

		deny(18, policy.FSExec, "run a program outside", "exec {out}/program", "EACCES"),
		deny(18, policy.FSExec, "run a program that may only be read", "exec {data}/program", "EACCES"),
		deny(18, policy.FSExec, "run a program that may only be read by handle", "execveat {data}/program", "EACCES"),
		deny(18, policy.FSExec, "run a program outside by handle", "execveat {out}/program", "EACCES"),
		deny(18, policy.FSExec, "run a program outside through a symlink", "exec {mine}/programlink", "EACCES"),

		deny(19, policy.ProcTrace, "environment of a host process", "read /proc/{host}/environ", "EACCES").needing(strangers),
		deny(19, policy.ProcTrace, "memory of a host process", "readable /proc/{host}/mem", "EACCES").needing(strangers),
		deny(19, policy.ProcTrace, "maps of a host process", "readable /proc/{host}/maps", "EACCES").needing(strangers),
		deny(19, policy.ProcTrace, "target of a host process' descriptor", "readlink /proc/{host}/fd/{hostfd}", "EACCES").needing(strangers),
		deny(19, policy.ProcTrace, "a descriptor of a host process", "read /proc/{host}/fd/{hostfd}", "EACCES").needing(strangers),
		deny(19, policy.ProcTrace, "cwd of a host process", "readlink /proc/{host}/cwd", "EACCES").needing(strangers),
		deny(19, policy.ProcTrace, "root of a host process", "readlink /proc/{host}/root", "EACCES").needing(strangers),
		deny(19, policy.ProcTrace, "environment of the launcher", "read /proc/{launcher}/environ", "EACCES").needing(strangers),
		deny(19, policy.ProcTrace, "memory of the launcher", "readable /proc/{launcher}/mem", "EACCES").needing(strangers),
		deny(19, policy.ProcTrace, "maps of the launcher", "readable /proc/{launcher}/maps", "EACCES").needing(strangers),
		deny(19, policy.ProcTrace, "cwd of the launcher", "readlink /proc/{launcher}/cwd", "EACCES").needing(strangers),
		deny(19, policy.ProcTrace, "root of the launcher", "readlink /proc/{launcher}/root", "EACCES").needing(strangers),
		gap(19, policy.ProcSee, "descriptor numbers of a host process", "readdir /proc/{host}/fd", "ENOENT"),
		gap(19, policy.ProcSee, "command line of a host process", "read /proc/{host}/cmdline", "ENOENT"),
		gap(19, policy.ProcSee, "status of a host process", "read /proc/{host}/status", "ENOENT"),
	}
}
