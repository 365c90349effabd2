// Package seccomp holds the system call filters that every confined command
// runs under on Linux: classic BPF programs for amd64 and arm64, compiled by
// libseccomp when the source is generated and committed as bytes, so that what
// users install needs neither cgo nor libseccomp.
//
// The policy is the table in table.go. Each row names a call, the conditions on
// its arguments, the answer and the reason. [Load] hands out the compiled
// program for one architecture and one [Variant]; installing it is the job of
// package internal/sys.
//
// What a program answers, from seccomp(2):
//
//   - a call that the table allows runs;
//   - a call that is closed on purpose fails with EPERM, or with the errno that
//     makes ordinary programs fall back (EACCES, EAFNOSUPPORT,
//     EPROTONOSUPPORT, ENOSYS);
//   - a call that the table does not know fails with ENOSYS, so that a call of
//     a future kernel is closed until someone has looked at it;
//   - a call that the supervisor has to judge is reported to the notification
//     listener (SECCOMP_RET_USER_NOTIF, see seccomp_unotify(2));
//   - a call of a foreign ABI (i386 through int 0x80, x32, 32-bit arm) kills
//     the process with SIGSYS.
//
// README.md in this directory says how to regenerate the programs, why each
// group of calls is answered as it is, and what the filter does not protect.
package seccomp

// The generator needs cgo and libseccomp's headers; nothing else here does.
//go:generate env CGO_ENABLED=1 go run -tags seccompgen ./gen
