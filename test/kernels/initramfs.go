package main

import (
	"context"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sandboxd/test/kernels/wire"
)

// initramfs is the guests' first root. What is the same for all machines is in
// one archive, built once; a machine's own part is a second archive behind it,
// as the kernel unpacks one after the other. Test binaries are in that: each costs
// a guest some tenths of a second, and most run few of them.
type initramfs struct {
	base  string
	size  int64
	tests map[string]string // packages and their binaries
}

// contents say what the guests get beside the commands and tests.
type contents struct {
	userland bool      // programs of the host: see userland.go
	cases    *caseList // nil: none
}

// commands are built into dir under these names.
var commands = []string{"./cmd/sbx", "./test/kernels/abicap", "./test/kernels/guest", "./backend/backendtest/probe"}

// build compiles for a processor and returns the directory of the binaries.
func build(ctx context.Context, dir, goarch string, tests bool) (string, error) {
	bin := filepath.Join(dir, "bin") + "/"
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", err
	}
	flags := []string{"-buildvcs=false", "-trimpath", "-ldflags=-s -w"}
	if err := goTool(ctx, goarch, slices.Concat([]string{"build", "-o", bin}, flags, commands)...); err != nil {
		return "", err
	}
	for _, p := range testPackages {
		if !tests {
			break
		}
		if !p.runsOn(goarch) {
			continue
		}
		out := filepath.Join(bin, path.Base(p.binary()))
		if err := goTool(ctx, goarch, slices.Concat([]string{"test", "-c", "-o", out}, flags, []string{"./" + p.path})...); err != nil {
			return "", err
		}
		if _, err := os.Stat(out); err != nil {
			return "", fmt.Errorf("%s has no tests for Linux", p.path)
		}
	}
	return bin, nil
}

// goTool builds for the guests: static, and for their processor.
func goTool(ctx context.Context, goarch string, args ...string) error {
	c := command(ctx, "go", args...)
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+goarch)
	if _, err := output(c); err != nil {
		return fmt.Errorf("go %s: %w", args[0], err)
	}
	return nil
}

// newInitramfs writes the archive that all machines of a processor share.
func newInitramfs(ctx context.Context, dir, goarch string, with contents) (*initramfs, error) {
	dir = filepath.Join(dir, goarch)
	bin, err := build(ctx, dir, goarch, true)
	if err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(dir, "base.cpio"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c := newCPIO(f)
	skeleton(c)
	addFile(c, "init", filepath.Join(bin, "guest"), 0o755)
	addFile(c, sbxPath, filepath.Join(bin, "sbx"), 0o755)
	addFile(c, abicap, filepath.Join(bin, "abicap"), 0o755)
	addFile(c, testDir+"/probe", filepath.Join(bin, "probe"), 0o755)
	tests := map[string]string{}
	for _, p := range testPackages {
		if p.runsOn(goarch) {
			tests[p.path] = filepath.Join(bin, path.Base(p.binary()))
		}
	}
	taken := map[string]bool{}
	if with.userland && goarch == hostArch { // others: foreign.go
		if taken, err = addUserland(ctx, c, dir); err != nil {
			return nil, err
		}
	}
	if with.cases != nil {
		with.cases.add(c)
	}
	if goarch == hostArch {
		if err := addBusybox(ctx, c, taken); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(c.Close(), f.Close()); err != nil {
		return nil, fmt.Errorf("writing the initramfs: %w", err)
	}
	return &initramfs{f.Name(), c.size, tests}, nil
}

// skeleton makes what programs expect of a system: merged directories, as on
// current distributions, and names for the two users.
func skeleton(c *cpio) {
	plain := attributes{perm: 0o755}
	for _, d := range []string{"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "proc", "sys", "run", "etc", "home", "var", strings.Trim(testDir, "/")} {
		c.Dir(d, plain)
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		c.Link(d, "usr/"+d)
	}
	c.Dir("root", attributes{perm: 0o700})
	c.Dir("home/user", attributes{perm: 0o755, uid: 1000})
	for _, d := range []string{"tmp", "var/tmp"} {
		c.Dir(d, attributes{perm: 0o777 | fs.ModeSticky})
	}
	// The kernel opens the console for init before init could mount anything.
	c.Device("dev/console", 0o600, 5, 1)
	c.Device("dev/null", 0o666, 1, 3)
	c.Text("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n")
	c.Text("etc/group", 0o644, "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n")
	c.Text("etc/hosts", 0o644, "127.0.0.1 localhost\n::1 localhost\n")
	c.Text("etc/nsswitch.conf", 0o644, "passwd: files\ngroup: files\nhosts: files\n")
	c.Text("etc/hostname", 0o644, "guest\n")
}

func addFile(c *cpio, name, from string, perm fs.FileMode) {
	f, err := os.Open(from)
	if err != nil {
		c.fail(err)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		c.fail(err)
		return
	}
	c.File(name, attributes{perm: perm}, f, info.Size())
}

// addBusybox adds the host's busybox under the names of its applets, except
// those that other programs have taken.
func addBusybox(ctx context.Context, c *cpio, taken map[string]bool) error {
	file, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	if err := mustBeStatic(file); err != nil {
		return err
	}
	list, err := output(command(ctx, file, "--list"))
	if err != nil {
		return err
	}
	const at = "usr/bin/busybox"
	addFile(c, at, file, 0o755)
	for applet := range strings.FieldsSeq(list) {
		if name := path.Base(applet); name != "busybox" && !taken[name] {
			c.Link("usr/bin/"+name, "busybox")
		}
	}
	return nil
}

func mustBeStatic(file string) error {
	f, err := elf.Open(file)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return withHint(fmt.Errorf("%s needs shared libraries, which the guests lack", file), "apt-get install --no-install-recommends busybox-static")
		}
	}
	return nil
}

// writeFor writes a machine's whole initramfs to file. Without jobs it has all
// tests, for a person to run.
func (i *initramfs) writeFor(file string, k kernel, key []byte, jobs []job) (size int64, err error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	base, err := os.Open(i.base)
	if err != nil {
		return 0, err
	}
	defer base.Close()
	if _, err := io.Copy(f, base); err != nil {
		return 0, err
	}
	list := []wire.Job{}
	for _, j := range jobs {
		list = append(list, j.Job)
	}
	text, err := json.Marshal(list)
	if err != nil {
		return 0, err
	}
	c := newCPIO(f)
	c.Text(wire.KeyFile, 0o400, hex.EncodeToString(key))
	c.Text(wire.JobsFile, 0o600, string(text))
	for _, p := range testPackages {
		wanted := jobs == nil || slices.ContainsFunc(jobs, func(j job) bool { return j.Package == p.path })
		if file := i.tests[p.path]; wanted && file != "" {
			addFile(c, p.binary(), file, 0o755)
		}
	}
	for n, m := range k.modules() {
		addFile(c, fmt.Sprintf("%s/%02d-%s", moduleDir, n, filepath.Base(m)), m, 0o644)
	}
	return i.size + c.size, errors.Join(c.Close(), f.Close())
}
