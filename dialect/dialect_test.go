package dialect_test

import (
	"slices"
	"strings"
	"testing"

	"sandboxd/dialect"
	"sandboxd/policy"
)

// errnos are the symbolic names that a table may hold, with Linux's own text
// in the C locale, lower case. They are written by hand, as the tables must
// mean the same on every system.
var errnos = map[string]string{
	"EPERM":           "operation not permitted",
	"ENOENT":          "no such file or directory",
	"EACCES":          "permission denied",
	"EXDEV":           "invalid cross-device link",
	"EROFS":           "read-only file system",
	"EBUSY":           "device or resource busy",
	"ENOSYS":          "function not implemented",
	"ESRCH":           "no such process",
	"EEXIST":          "file exists",
	"EADDRNOTAVAIL":   "cannot assign requested address",
	"ELOOP":           "too many levels of symbolic links",
	"ENETUNREACH":     "network is unreachable",
	"ECONNREFUSED":    "connection refused",
	"EAFNOSUPPORT":    "address family not supported by protocol",
	"EPROTONOSUPPORT": "protocol not supported",
}

func dialects() []dialect.Dialect { return []dialect.Dialect{dialect.Landlock(), dialect.Native()} }

func TestTablesAreSound(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range dialects() {
		t.Run(d.Backend, func(t *testing.T) {
			if d.Backend == "" || seen[d.Backend] {
				t.Errorf("two dialects are named %q", d.Backend)
			}
			seen[d.Backend] = true
			if len(d.NotProof) == 0 || len(d.Errnos) == 0 || len(d.Texts) == 0 {
				t.Error("an empty table")
			}
			effects := map[string]bool{}
			for _, e := range d.Errnos {
				if _, err := policy.ParseEffect(e.Effect); err != nil {
					t.Error(err)
				}
				if effects[e.Effect] {
					t.Errorf("%s stands there twice", e.Effect)
				}
				effects[e.Effect] = true
				if len(e.Errnos) == 0 || e.By == "" {
					t.Errorf("%s has no errno, or nobody who answers it", e.Effect)
				}
				for _, name := range e.Errnos {
					if errnos[name] == "" {
						t.Errorf("%s: %s is no errno that this test knows", e.Effect, name)
					}
				}
			}
			checkTexts(t, d)
			for _, s := range slices.Concat(d.NotProof, d.ExitNotes) {
				if strings.TrimSpace(s) == "" {
					t.Error("an empty sentence")
				}
			}
		})
	}
}

// checkTexts: each text is one that an errno of the table prints.
func checkTexts(t *testing.T, d dialect.Dialect) {
	t.Helper()
	var printed []string
	for _, e := range d.Errnos {
		for _, name := range e.Errnos {
			printed = append(printed, errnos[name])
		}
	}
	for i, text := range d.Texts {
		if text != strings.ToLower(text) || strings.TrimSpace(text) != text || text == "" {
			t.Errorf("text %q is not lower case, or not trimmed", text)
		}
		if !slices.Contains(printed, text) {
			t.Errorf("no errno of the table prints %q", text)
		}
		if slices.Contains(d.Texts[:i], text) {
			t.Errorf("text %q stands there twice", text)
		}
	}
}

// TestPromiseHasErrnos: a backend must be able to say no to all that it
// promises.
func TestPromiseHasErrnos(t *testing.T) {
	for _, d := range dialects() {
		for _, e := range policy.Promise().List() {
			if !slices.ContainsFunc(d.Errnos, func(x dialect.EffectErrno) bool { return x.Effect == e.String() }) {
				t.Errorf("%s has no errno for %s", d.Backend, e)
			}
		}
	}
}

func TestFits(t *testing.T) {
	d := dialect.Landlock()
	for _, tt := range []struct {
		effect, errno string
		want          bool
	}{
		{"fs.write", "EACCES", true},
		{"fs.write", "EXDEV", true},
		{"fs.hardlink", "EXDEV", true},
		{"fs.exec", "EACCES", true},
		{"net.unix.abstract", "EPERM", true},
		{"kernel.io_uring", "ENOSYS", true},
		{"net.other", "EPROTONOSUPPORT", true},
		{"net.unix.path", "ELOOP", true},
		{"fs.exec", "ENOENT", false},     // not found is not denied
		{"fs.read", "EXDEV", false},      // another effect's errno
		{"fs.write", "EROFS", false},     // another backend's errno
		{"fs.metadata", "EACCES", false}, // not governed, so never denied
		{"proc.see", "EPERM", false},
		{"fs.writ", "EACCES", false},
		{"", "", false},
		{"fs.write", "", false},
		{"fs.write", "eacces", false},
	} {
		if got := d.Fits(tt.effect, tt.errno); got != tt.want {
			t.Errorf("Fits(%q, %q) = %v", tt.effect, tt.errno, got)
		}
	}
	if (dialect.Dialect{}).Fits("fs.write", "EACCES") {
		t.Error("the empty dialect fits")
	}
}

func TestMatch(t *testing.T) {
	d := dialect.Landlock()
	for line, want := range map[string]string{
		"sh: 1: cannot create x: Permission denied":        "permission denied",
		"PERMISSION DENIED":                                "permission denied",
		"mv: cannot move 'a': Invalid cross-device link":   "invalid cross-device link",
		"mount: Operation not permitted.":                  "operation not permitted",
		"socket: Address family not supported by protocol": "address family not supported by protocol",
		"touch: cannot touch 'x': Read-only file system":   "", // another backend's
		"cat: x: No such file or directory":                "",
		"Keine Berechtigung":                               "", // another language
		"permission\ndenied":                               "",
		"":                                                 "",
	} {
		if got := d.Match(line); got != want {
			t.Errorf("Match(%q) = %q, want %q", line, got, want)
		}
	}
	if (dialect.Dialect{}).Match("permission denied") != "" {
		t.Error("the empty dialect matches")
	}
}

// TestNativeSaysItsOwn: what is common to it and to Landlock is not all of it.
func TestNativeSaysItsOwn(t *testing.T) {
	d := dialect.Native()
	for _, tt := range []struct {
		effect, errno string
		want          bool
	}{
		{"fs.write", "EROFS", true},
		{"fs.read", "ENOENT", true},
		{"fs.protected", "EBUSY", true},
		{"proc.signal", "ESRCH", true},
		{"net.unix.abstract", "ECONNREFUSED", true},
		{"fs.read", "EROFS", false},     // to read it is enough
		{"proc.signal", "EIO", false},   // nobody's
		{"tree.kill", "EPERM", false},   // not governed by an errno
		{"fs.exec", "ENOEXEC", false},   // the file's own fault
		{"fs.truncate", "EXDEV", false}, // another effect's errno
	} {
		if got := d.Fits(tt.effect, tt.errno); got != tt.want {
			t.Errorf("Fits(%q, %q) = %v", tt.effect, tt.errno, got)
		}
	}
	for line, want := range map[string]string{
		"touch: cannot touch 'x': Read-only file system":  "read-only file system",
		"mv: cannot move 'a': Device or resource busy":    "device or resource busy",
		"cat: x: No such file or directory":               "", // far too common
		"mkdir: cannot create directory 'x': File exists": "",
	} {
		if got := d.Match(line); got != want {
			t.Errorf("Match(%q) = %q, want %q", line, got, want)
		}
	}
}

// TestTablesAreCopies: who changes a table changes nobody else's.
func TestTablesAreCopies(t *testing.T) {
	a := dialect.Landlock()
	a.Texts[0], a.Errnos[0].Errnos[0] = "x", "x"
	if b := dialect.Landlock(); b.Texts[0] == "x" || b.Errnos[0].Errnos[0] == "x" {
		t.Error("two callers share a table")
	}
}
