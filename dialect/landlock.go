package dialect

// Landlock is the dialect of the landlock backend: Landlock's own answers and
// those of the seccomp filter and the supervisor that stand beside it in the
// same launch.
func Landlock() Dialect {
	return Dialect{
		Backend: "landlock",
		Errnos: []EffectErrno{
			{"fs.read", []string{"EACCES"}, "landlock"},
			{"fs.write", []string{"EACCES", "EXDEV"}, "landlock"},
			{"fs.exec", []string{"EACCES"}, "landlock"},
			{"fs.truncate", []string{"EACCES"}, "landlock"},
			{"fs.ioctl", []string{"EACCES"}, "landlock"},
			{"fs.hardlink", []string{"EACCES", "EXDEV"}, "landlock"},
			{"net.tcp.connect", []string{"EACCES"}, "seccomp"},
			{"net.tcp.bind", []string{"EACCES"}, "seccomp"},
			{"net.udp", []string{"EACCES"}, "seccomp"},
			{"net.raw", []string{"EACCES", "EAFNOSUPPORT"}, "seccomp"},
			{"net.other", []string{"EACCES", "EAFNOSUPPORT", "EPROTONOSUPPORT"}, "seccomp"},
			{"net.unix.path", []string{"EACCES", "ELOOP"}, "landlock or seccomp-notify"},
			{"net.unix.abstract", []string{"EPERM", "EACCES"}, "landlock or seccomp-notify"},
			{"proc.signal", []string{"EPERM"}, "landlock"},
			{"proc.trace", []string{"EPERM", "EACCES"}, "landlock"},
			{"kernel.keyring", []string{"EPERM"}, "seccomp"},
			{"kernel.io_uring", []string{"ENOSYS"}, "seccomp"},
			{"kernel.mount", []string{"EPERM"}, "seccomp"},
			{"kernel.userns", []string{"EPERM", "ENOSYS"}, "seccomp"},
			{"tty.inject", []string{"EPERM", "EACCES"}, "seccomp or landlock"},
		},
		Texts: []string{
			"permission denied",
			"invalid cross-device link",
			"operation not permitted",
			"address family not supported by protocol",
		},
		ExitNotes: []string{
			"126 from a shell: the file to run lies outside the readable roots (EACCES), or is not executable at all",
			"127 from the dynamic loader: a library lies outside the readable roots",
		},
		NotProof: []string{
			"EACCES is also what file modes and ownership answer",
			"EXDEV is also what a rename across two file systems answers",
			"EPERM is also what a call without its capability answers",
			"the texts are printed by the program, which may print what it likes",
		},
	}
}
