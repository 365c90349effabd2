package dialect

// Native is the dialect of the native backend: what is not in the worker's own tree of
// files or among its own processes is not there, what is shown to be read is on mounts
// that are read-only, and what is held is a mount itself. Behind these stand Landlock,
// the seccomp filter and the supervisor as in [Landlock].
func Native() Dialect {
	return Dialect{
		Backend: "native",
		Errnos: []EffectErrno{
			{"fs.read", []string{"ENOENT", "EACCES"}, "mount namespace or landlock"},
			{"fs.write", []string{"EROFS", "ENOENT", "EACCES", "EXDEV", "EBUSY"}, "mount namespace or landlock"},
			{"fs.exec", []string{"EACCES", "ENOENT"}, "mount namespace or landlock"},
			{"fs.truncate", []string{"EROFS", "ENOENT", "EACCES"}, "mount namespace or landlock"},
			{"fs.metadata", []string{"EROFS", "ENOENT"}, "mount namespace"},
			{"fs.ioctl", []string{"EACCES", "ENOENT"}, "mount namespace or landlock"},
			{"fs.protected", []string{"EROFS", "EBUSY", "EXDEV", "EEXIST"}, "mount namespace"},
			{"fs.hardlink", []string{"EXDEV", "ENOENT", "EROFS", "EACCES"}, "mount namespace or landlock"},
			{"net.tcp.connect", []string{"ECONNREFUSED", "ENETUNREACH", "EACCES"}, "network namespace or seccomp"},
			{"net.tcp.bind", []string{"EADDRNOTAVAIL", "EACCES"}, "network namespace or seccomp"},
			{"net.udp", []string{"ECONNREFUSED", "ENETUNREACH", "EACCES"}, "network namespace or seccomp"},
			{"net.raw", []string{"EPERM", "EACCES", "EAFNOSUPPORT"}, "seccomp or no capability"},
			{"net.other", []string{"EACCES", "EAFNOSUPPORT", "EPROTONOSUPPORT"}, "seccomp"},
			{"net.unix.path", []string{"ENOENT", "EACCES", "ELOOP", "ECONNREFUSED"}, "mount namespace, landlock or seccomp-notify"},
			{"net.unix.abstract", []string{"ECONNREFUSED", "EPERM", "EACCES"}, "network namespace, landlock or seccomp-notify"},
			{"proc.signal", []string{"ESRCH", "EPERM"}, "PID namespace or landlock"},
			{"proc.trace", []string{"ESRCH", "EPERM", "EACCES"}, "PID namespace or landlock"},
			{"proc.see", []string{"ENOENT", "ESRCH"}, "PID namespace"},
			{"kernel.keyring", []string{"EPERM"}, "seccomp"},
			{"kernel.io_uring", []string{"ENOSYS"}, "seccomp"},
			{"kernel.mount", []string{"EPERM"}, "seccomp"},
			{"kernel.userns", []string{"EPERM", "ENOSYS"}, "seccomp"},
			{"tty.inject", []string{"EPERM", "EACCES", "ENOENT"}, "seccomp or mount namespace"},
		},
		Texts: []string{
			"read-only file system",
			"permission denied",
			"device or resource busy",
			"invalid cross-device link",
			"operation not permitted",
			"no such process",
			"network is unreachable",
			"address family not supported by protocol",
		},
		ExitNotes: []string{
			"126 from a shell: the file to run is denied or granted without execution (EACCES), or is not executable at all",
			"127 from a shell or the dynamic loader: the file or a library is not in the worker's tree, or nowhere",
		},
		NotProof: []string{
			"ENOENT and ESRCH are also what is nowhere answers: that something exists outside is not told",
			"EROFS is also what a file system that is mounted read-only outside answers",
			"EACCES is also what file modes and ownership answer",
			"EXDEV is also what a rename across two file systems answers; inside, each granted or held place is a mount",
			"EBUSY is also what a mount point or a busy device answers outside",
			"EEXIST is also what a file that is there answers: a name that is kept from being made bears a directory meanwhile",
			"ECONNREFUSED is also what a socket answers that nobody listens at",
			"EPERM is also what a call without its capability answers",
			"the texts are printed by the program, which may print what it likes",
		},
	}
}
