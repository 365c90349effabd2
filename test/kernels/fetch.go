package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// kernel is one that can be booted, in the cache.
type kernel struct {
	Series  string
	Version string
	Dir     string
	// Stale says why this may not be the newest of its series.
	Stale string
}

func (k kernel) image() string { return filepath.Join(k.Dir, "vmlinuz") }

// modules are the kernel modules that came with it, in the order of loading.
func (k kernel) modules() []string {
	found, _ := filepath.Glob(filepath.Join(k.Dir, "*.ko"))
	return found
}

// fetcher gets kernels through a private apt and keeps them by version:
//
//	CACHE/apt               the private apt's
//	CACHE/kernels/6.1/VERSION/vmlinuz
//	CACHE/programs/SET-SUM/*.deb   see foreign.go
//	CACHE/lock              held by the run that fetches
//	CACHE/arm64/            the same for another architecture
//
// A version's directory appears by one rename, so that a run which only reads
// never sees half of one.
type fetcher struct {
	cache string
	arch  arch
	say   func(format string, args ...any)

	apt *apt
	// lists are the packages that the mirror has, unreachable why it has told none.
	lists       []byte
	unreachable error
}

// openFetcher waits for other runs, then asks the mirror. Without a mirror the
// cache must do.
func openFetcher(ctx context.Context, cache string, of arch, say func(string, ...any)) (f *fetcher, release func(), err error) {
	if of.name != amd64 {
		cache = filepath.Join(cache, of.name)
	}
	if err := os.MkdirAll(filepath.Join(cache, "kernels"), 0o755); err != nil {
		return nil, nil, err
	}
	release, err = lock(ctx, filepath.Join(cache, "lock"), func() { say("waiting for another run to fetch its kernels") })
	if err != nil {
		return nil, nil, err
	}
	f = &fetcher{cache: cache, arch: of, say: say}
	f.unreachable = f.ask(ctx)
	if ctx.Err() != nil {
		release()
		return nil, nil, ctx.Err()
	}
	if err := f.unreachable; err != nil {
		say("the mirror cannot be asked, so cached kernels must do: %v", err)
		f.unreachable = errors.New("the mirror cannot be asked")
	}
	return f, release, nil
}

func (f *fetcher) ask(ctx context.Context) (err error) {
	if f.apt, err = newApt(ctx, filepath.Join(f.cache, "apt"), f.arch); err != nil {
		return err
	}
	if err := f.apt.update(ctx); err != nil {
		return err
	}
	f.lists, err = f.apt.available(ctx)
	return err
}

// errNotToBeHad is why a machine is skipped: neither mirror nor cache has it.
var errNotToBeHad = errors.New("not to be had")

// kernel gets the first of the series that can be had.
func (f *fetcher) kernel(ctx context.Context, series []string) (kernel, error) {
	var reasons []string
	for _, s := range series {
		k, err := f.newest(ctx, s)
		if err == nil || ctx.Err() != nil {
			return k, err
		}
		reasons = append(reasons, fmt.Sprintf("%s: %v", s, err))
	}
	return kernel{}, fmt.Errorf("%w: %s", errNotToBeHad, strings.Join(reasons, "; "))
}

// newest tries the candidates of a series from the newest on, as lists may name
// packages that are gone from the pool, and then what is cached.
func (f *fetcher) newest(ctx context.Context, series string) (kernel, error) {
	const tries = 3
	why := f.unreachable
	if why == nil {
		list, err := candidates(bytes.NewReader(f.lists), series, f.arch.name)
		if err != nil {
			return kernel{}, err
		}
		why = errors.New("the mirror lists none")
		for _, c := range list[:min(tries, len(list))] {
			var k kernel
			if k, why = f.get(ctx, series, c); why == nil || ctx.Err() != nil {
				return k, why
			}
			f.say("%s %s: %v", c.Package, c.Version, why)
			why = fmt.Errorf("%s could not be fetched", c.Package)
		}
	}
	if k, ok := f.cached(series); ok {
		k.Stale = why.Error()
		return k, nil
	}
	return kernel{}, why
}

// cached is the newest kernel of a series in the cache.
func (f *fetcher) cached(series string) (kernel, bool) {
	entries, _ := os.ReadDir(filepath.Join(f.cache, "kernels", series))
	var versions []string
	for _, e := range entries {
		if versionText.MatchString(e.Name()) {
			versions = append(versions, e.Name())
		}
	}
	if len(versions) == 0 {
		return kernel{}, false
	}
	return f.at(series, slices.MaxFunc(versions, compareVersions)), true
}

func (f *fetcher) at(series, version string) kernel {
	return kernel{Series: series, Version: version, Dir: filepath.Join(f.cache, "kernels", series, version)}
}

func (f *fetcher) get(ctx context.Context, series string, c candidate) (kernel, error) {
	k := f.at(series, c.Version)
	if _, err := os.Stat(k.image()); err == nil {
		return k, nil
	}
	f.say("fetching %s %s", c.Package, c.Version)
	return k, appear(k.Dir, func(dir string) error {
		for _, p := range c.packages(f.lists) {
			deb, err := f.apt.download(ctx, candidate{p, c.Version}, dir)
			if err != nil {
				return err
			}
			if err := errors.Join(unpack(ctx, deb, dir), os.Remove(deb)); err != nil {
				return fmt.Errorf("unpacking %s: %w", p, err)
			}
		}
		if _, err := os.Stat(filepath.Join(dir, "vmlinuz")); err != nil {
			return errors.New("the package has no kernel")
		}
		return nil
	})
}

// appear makes a directory that is not there, by one rename once it is filled.
// The lock is held.
func appear(final string, fill func(dir string) error) error {
	if err := os.MkdirAll(filepath.Dir(final), 0o755); err != nil {
		return err
	}
	// Beside its place, so that a rename can take it there. Others of this pattern
	// were left behind by runs that were killed.
	const pattern = ".new-*"
	stale, _ := filepath.Glob(filepath.Join(filepath.Dir(final), pattern))
	for _, d := range stale {
		os.RemoveAll(d)
	}
	dir, err := os.MkdirTemp(filepath.Dir(final), pattern)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := fill(dir); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	return os.Rename(dir, final)
}

// wantedModules are loaded in every machine whose kernel came with them, as a
// usual system would on demand. None needs another module.
var wantedModules = []string{
	"overlay",
	"unix_diag",                    // the supervisor asks it whose an abstract socket is, before ABI 9
	"af_alg", "nfnetlink", "vsock", // so that the sandbox has something to refuse
}

// unpack takes the kernel and the wanted modules out of a package. Of the names
// in it only the last elements are used.
func unpack(ctx context.Context, deb, dir string) error {
	return files(ctx, deb, func(in *tar.Reader) error { return extract(ctx, in, dir) })
}

// files reads what a package installs.
func files(ctx context.Context, deb string, read func(*tar.Reader) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := command(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	err = read(tar.NewReader(out))
	if err != nil {
		cancel()
	}
	io.Copy(io.Discard, out) // what follows the tar's end, or Wait would see a broken pipe
	if werr := c.Wait(); werr != nil && err == nil {
		err = fmt.Errorf("dpkg-deb: %w%s", werr, complaint(stderr.String()))
	}
	return err
}

func extract(ctx context.Context, in *tar.Reader, dir string) error {
	for {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		base := filepath.Base(h.Name)
		name, extension, isModule := strings.Cut(base, ".ko")
		switch {
		case h.Typeflag != tar.TypeReg:
		case strings.HasPrefix(base, "vmlinuz"):
			err = writeFile(filepath.Join(dir, "vmlinuz"), in)
		case isModule && slices.Contains(wantedModules, name):
			err = module(ctx, filepath.Join(dir, name+".ko"), extension, in)
		}
		if err != nil {
			return err
		}
	}
}

// module decompresses a module: only newer kernels could do it themselves.
func module(ctx context.Context, to, extension string, in io.Reader) error {
	program := map[string]string{".xz": "xz", ".zst": "zstd"}[extension]
	if program == "" {
		return writeFile(to, in)
	}
	c := command(ctx, program, "-dcq")
	c.Stdin = in
	text, err := output(c)
	if err != nil {
		return err
	}
	return writeFile(to, strings.NewReader(text))
}

func writeFile(path string, from io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

// lock takes a lock file; waiting is called once if another process holds it.
func lock(ctx context.Context, path string, waiting func()) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for said := false; ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, &fs.PathError{Op: "flock", Path: path, Err: err}
		}
		if !said {
			waiting()
			said = true
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}
