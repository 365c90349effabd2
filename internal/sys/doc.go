// Package sys is the only place with raw system calls and package unsafe.
//
// Wrappers mirror kernel names one to one, retry EINTR where the call may be
// restarted, always set O_CLOEXEC, and return errors that name the call, so
// that errors.Is finds the errno. Nothing here decides policy.
package sys
