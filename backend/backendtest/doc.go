// Package backendtest is the conformance suite that every backend runs. Each
// row attempts one touch of the escape catalogue inside the sandbox and says
// what must come of it. A row proves nothing by a refusal alone:
//
//   - the same attempt by the same program outside the sandbox, in a fixture of
//     its own, must succeed, or fail in another way that the row names;
//   - the effect is looked at from outside: files, listeners, signals;
//   - the errno must be the one of the backend's dialect;
//   - what a backend reports as not enforced is pinned: such a row must
//     succeed, so that the test fails on the day that a kernel closes the gap;
//   - and a mutation test of each backend takes parts of the confinement away
//     and wants the rows of the effects concerned to fail.
//
// The attempts are made by the program in the probe folder. It is built with
// the go command, or taken from SBX_TEST_PROBE, or found under the name "probe"
// beside the test binary: the last two are for runs as a user without a Go
// installation.
package backendtest
