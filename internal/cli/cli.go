// Package cli is what the commands of this project have in common: how they
// complain, their version, and flags of sizes and durations.
package cli

import (
	"fmt"
	"io"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"sandboxd/policy"
)

// Complain writes one line, and one hint on a line of its own, escaped so that
// no untrusted text can forge another line.
func Complain(w io.Writer, program, line, hint string) {
	fmt.Fprintf(w, "%s: %s\n", program, Printable(line))
	if hint != "" {
		fmt.Fprintf(w, "%s: hint: %s\n", program, Printable(hint))
	}
}

// Printable is a text as one line without control characters.
func Printable(s string) string {
	if p := policy.Printable(s); p != s {
		return strings.Trim(p, `"`)
	}
	return s
}

// Version is what the Makefile has set; for a plain `go build` the module's build
// information.
func Version(set string) string {
	if set != "" {
		return set
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "devel"
}

// Size is a flag, or a word of a configuration, of bytes, or of what a unit of 1024s
// makes of them.
type Size int64

func (v *Size) String() string {
	if *v == 0 {
		return "0" // nothing that pflag would show as a default
	}
	return strconv.FormatInt(int64(*v), 10)
}

// Type is for pflag.
func (v *Size) Type() string { return "size" }

// Set reads one.
func (v *Size) Set(s string) error {
	number := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(s), "B"), "I")
	shift := 0
	if n := len(number); n > 0 {
		if i := strings.IndexByte("KMGT", number[n-1]); i >= 0 {
			number, shift = number[:n-1], 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 || n > (1<<62)>>shift {
		return fmt.Errorf("%q is no size, as in 65536, 512M or 2G", s)
	}
	*v = Size(n << shift)
	return nil
}

// UnmarshalText is Set.
func (v *Size) UnmarshalText(b []byte) error { return v.Set(string(b)) }

// Duration is a flag, or a word of a configuration, of whole seconds, or of what
// [time.ParseDuration] reads.
type Duration time.Duration

func (d *Duration) String() string {
	if *d == 0 {
		return "0" // nothing that pflag would show as a default
	}
	return time.Duration(*d).String()
}

// Type is for pflag.
func (d *Duration) Type() string { return "duration" }

// Set reads one.
func (d *Duration) Set(s string) error {
	v, err := time.ParseDuration(s)
	if n, nerr := strconv.ParseFloat(s, 64); nerr == nil {
		if v, err = time.Duration(n*float64(time.Second)), nil; n > maxSeconds || n != n {
			return fmt.Errorf("%q is too long", s)
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("%q is no duration, as in 90, 90s or 5m", s)
	case v < 0:
		return fmt.Errorf("%q is negative", s)
	}
	*d = Duration(v)
	return nil
}

// UnmarshalText is Set.
func (d *Duration) UnmarshalText(b []byte) error { return d.Set(string(b)) }

// maxSeconds keeps a number of seconds within time.Duration.
const maxSeconds = 1 << 32
