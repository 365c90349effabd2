// Package features is what this host can enforce, as `sbx features --json` and the
// daemon's `features` tell it.
package features

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/policy"
	"sandboxd/report"
)

// Report is the answer. docs/cli.md describes it.
type Report struct {
	Schema   int                  `json:"schema"`
	Version  string               `json:"sbx_version"`
	OS       string               `json:"os"`
	Arch     string               `json:"arch"`
	Kernel   string               `json:"kernel,omitempty"`
	UID      int                  `json:"uid"`
	Effects  []policy.Effect      `json:"effects"`
	Promise  []policy.Effect      `json:"promise"`
	Backends []backend.Capability `json:"backends"`
	// Selection is what is taken for the usual policy, and why.
	Selection backend.Selection `json:"selection"`
}

// Of asks the backends, in the order of those for auto.
func Of(version string, backends []backend.Backend) Report {
	r := Report{
		Schema: report.SchemaVersion, Version: version, OS: runtime.GOOS, Arch: runtime.GOARCH, Kernel: kernelRelease(),
		UID: os.Geteuid(), Effects: policy.Effects(), Promise: policy.Promise().List(),
	}
	for _, b := range backends {
		r.Backends = append(r.Backends, backend.Describe(b))
	}
	r.Selection, _ = backend.Explain(backend.Usual(), backends) // that policy is confined
	return r
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
