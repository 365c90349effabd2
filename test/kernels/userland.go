package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// userland are the host's programs that guests get for shell cases. What the
// host lacks is left out; the cases that want it are skipped by name.
var userland = []string{
	"bash", "sh",
	// coreutils, where cases want more than busybox does
	"base64", "basename", "cat", "chmod", "chown", "cp", "cut", "date", "dd", "dirname", "env", "head", "id", "install", "ln", "ls", "mkdir",
	"mkfifo", "mktemp", "mv", "nproc", "od", "printf", "readlink", "realpath", "rm", "rmdir", "seq", "sleep", "sort", "stat", "sync", "tail",
	"tee", "timeout", "touch", "tr", "true", "false", "truncate", "uname", "wc",
	"grep", "sed", "find", "xargs", "getent",
	"setsid", "setpriv", "script", "unshare", // util-linux
	"ssh-agent", "ssh-add", "make", "git",
	"python3",
}

// addUserland copies programs, the libraries that they load, and python's
// standard library. It returns the names that are taken.
func addUserland(ctx context.Context, c *cpio, dir string) (taken map[string]bool, err error) {
	u := &hostFiles{ctx: ctx, c: c, done: map[string]bool{}}
	taken = map[string]bool{}
	for _, name := range userland {
		file, err := lookSystem(name)
		if err != nil {
			continue
		}
		taken[name] = true
		if err := u.program(name, file); err != nil {
			return nil, err
		}
		if name == "python3" {
			if err := u.python(file, dir); err != nil {
				return nil, fmt.Errorf("python's standard library: %w", err)
			}
		}
	}
	for _, name := range []string{"bash", "python3"} {
		if !taken[name] {
			return nil, withHint(fmt.Errorf("the host has no %s in /usr/bin", name), "apt-get install "+name)
		}
	}
	return taken, nil
}

// lookSystem finds a program of the system: what a version manager put in front
// of it has its files elsewhere.
func lookSystem(name string) (string, error) {
	for _, d := range []string{"/usr/bin", "/bin", "/usr/sbin", "/sbin"} {
		if file := filepath.Join(d, name); exec.Command(file).Err == nil {
			if _, err := os.Stat(file); err == nil {
				return file, nil
			}
		}
	}
	return "", exec.ErrNotFound
}

// hostFiles copies files to the same places in the guest.
type hostFiles struct {
	ctx  context.Context
	c    *cpio
	done map[string]bool
}

// program adds a program where its links lead, and its name in /usr/bin.
func (u *hostFiles) program(name, file string) error {
	real, err := filepath.EvalSymlinks(file)
	if err != nil {
		return err
	}
	if err := u.binary(real); err != nil {
		return err
	}
	if at := "usr/bin/" + name; guestPath(real) != at {
		u.c.Link(at, "/"+guestPath(real))
	}
	return nil
}

// binary adds a file and the shared libraries that it needs.
func (u *hostFiles) binary(file string) error {
	if !u.add(file, file) {
		return nil
	}
	out, err := output(command(u.ctx, "ldd", file))
	if err != nil {
		if u.ctx.Err() == nil { // "not a dynamic executable": a script, or static
			return nil
		}
		return err
	}
	for _, lib := range librariesIn(out) {
		dir, err := filepath.EvalSymlinks(filepath.Dir(lib))
		if err != nil {
			return err
		}
		u.add(filepath.Join(dir, filepath.Base(lib)), lib)
	}
	return nil
}

// add adds one file, once.
func (u *hostFiles) add(name, from string) bool {
	name = guestPath(name)
	if u.done[name] {
		return false
	}
	u.done[name] = true
	info, err := os.Stat(from)
	if err != nil {
		u.c.fail(err)
		return false
	}
	addFile(u.c, name, from, info.Mode().Perm())
	return true
}

// guestPath is a path below the guest's merged /usr.
func guestPath(file string) string {
	name := strings.TrimPrefix(path.Clean(file), "/")
	for _, d := range []string{"bin/", "sbin/", "lib/", "lib64/"} {
		if strings.HasPrefix(name, d) {
			return "usr/" + name
		}
	}
	return name
}

// librariesIn reads the paths out of what ldd prints.
func librariesIn(text string) []string {
	var list []string
	for line := range strings.Lines(text) {
		_, lib, arrow := strings.Cut(line, " => ")
		if !arrow {
			lib = line // the loader has no arrow, nor has linux-vdso, which is no file
		}
		if lib, _, _ = strings.Cut(strings.TrimSpace(lib), " ("); filepath.IsAbs(lib) {
			list = append(list, lib)
		}
	}
	return list
}

// notInGuests are parts of python's library that no case uses.
var notInGuests = []string{
	"__pycache__", "config-*", "curses", "dist-packages", "ensurepip", "idlelib", "lib2to3", "pydoc*", "site-packages", "sqlite3", "_sqlite3*",
	"test", "tests", "_test*", "_codecs_*", "tkinter", "turtle*", "wsgiref", "xmlrpc", "_xx*",
}

// python adds the standard library, compiled, without its sources: the guest
// would take seconds to compile it at each start. The compiled files are by
// hash, unchecked, since times of files do not survive the way into the guest.
func (u *hostFiles) python(file, dir string) error {
	out, err := output(command(u.ctx, file, "-I", "-c", `import json, sysconfig; print(json.dumps(sysconfig.get_path("stdlib")))`))
	if err != nil {
		return err
	}
	var lib string
	if err := json.Unmarshal([]byte(out), &lib); err != nil {
		return err
	}
	compiled := filepath.Join(dir, "python")
	if err := u.copyTree(lib, compiled); err != nil {
		return err
	}
	if _, err := output(command(u.ctx, file, "-I", "-m", "compileall", "-b", "-q", "--invalidation-mode", "unchecked-hash", compiled)); err != nil {
		return err
	}
	return filepath.WalkDir(compiled, func(from string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(from) != ".pyc" {
			return err
		}
		u.add(filepath.Join(lib, strings.TrimPrefix(from, compiled)), from)
		return nil
	})
}

// copyTree copies python files; libraries go to the guest as they are.
func (u *hostFiles) copyTree(from, to string) error {
	return filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if slices.ContainsFunc(notInGuests, func(p string) bool { ok, _ := path.Match(p, d.Name()); return ok }) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		target := filepath.Join(to, strings.TrimPrefix(file, from))
		switch filepath.Ext(file) {
		case ".py":
			in, err := os.Open(file)
			if err != nil {
				return err
			}
			defer in.Close()
			return errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), writeFile(target, in))
		case ".so":
			return u.binary(file)
		}
		return nil
	})
}
