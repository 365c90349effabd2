package main

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Guests of another processor than the host's get their programs from Debian:
// busybox, python, which tests of the supervisor use, and with --userland what
// others get of the host's.
var (
	foreignPrograms = []string{"busybox-static", "python3"}
	foreignUserland = []string{"bash", "coreutils", "grep", "sed", "findutils", "libc-bin", "util-linux", "bsdutils", "openssh-client", "make", "git"}
)

// programs fetches the packages and those that they depend on, or takes what is
// cached.
func (f *fetcher) programs(ctx context.Context, userland bool) (debs []string, err error) {
	set, wanted := "basic", foreignPrograms
	if userland {
		set, wanted = "userland", slices.Concat(foreignPrograms, foreignUserland)
	}
	why := f.unreachable
	if why == nil {
		if debs, why = f.fetchPrograms(ctx, set, wanted); why == nil || ctx.Err() != nil {
			return debs, why
		}
		f.say("programs for %s: %v", f.arch.name, why)
	}
	dir := f.cachedPrograms(set)
	if dir == "" {
		return nil, fmt.Errorf("programs for %s: %w", f.arch.name, why)
	}
	return filepath.Glob(filepath.Join(dir, "*.deb"))
}

// cachedPrograms is the directory of a set that was fetched last.
func (f *fetcher) cachedPrograms(set string) (newest string) {
	dirs, _ := filepath.Glob(filepath.Join(f.cache, "programs", set+"-*"))
	var when time.Time
	for _, d := range dirs {
		if info, err := os.Stat(d); err == nil && info.ModTime().After(when) {
			newest, when = d, info.ModTime()
		}
	}
	return newest
}

var fetchedDeb = regexp.MustCompile(`(?m)^'[^']*' (\S+\.deb) `)

func (f *fetcher) fetchPrograms(ctx context.Context, set string, wanted []string) ([]string, error) {
	install := slices.Concat([]string{"-y", "--no-install-recommends", "install"}, wanted)
	uris, err := output(f.apt.command(ctx, "apt-get", slices.Concat([]string{"--print-uris"}, install)...))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, m := range fetchedDeb.FindAllStringSubmatch(uris, -1) {
		names = append(names, m[1])
	}
	slices.Sort(names)
	dir := filepath.Join(f.cache, "programs", fmt.Sprintf("%s-%x", set, sha256.Sum256([]byte(strings.Join(names, "\n")))))
	if _, err := os.Stat(dir); err != nil {
		f.say("fetching %d packages of programs for %s", len(names), f.arch.name)
		err := appear(dir, func(dir string) error {
			archives := []string{"--download-only", "-o", "Dir::Cache::archives=" + dir}
			if err := os.Mkdir(filepath.Join(dir, "partial"), 0o755); err != nil {
				return err
			}
			_, err := output(f.apt.command(ctx, "apt-get", slices.Concat(archives, install)...))
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err == nil && len(debs) != len(names) {
		err = fmt.Errorf("apt left %d packages of %d", len(debs), len(names))
	}
	return debs, err
}

// addPrograms puts the files of packages into one more archive behind the
// first.
func (i *initramfs) addPrograms(ctx context.Context, debs []string) error {
	f, err := os.OpenFile(i.base, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	c := newCPIO(f)
	for _, deb := range debs {
		if err := unpackInto(ctx, c, deb); err != nil {
			return fmt.Errorf("unpacking %s: %w", filepath.Base(deb), err)
		}
	}
	i.size += c.size
	return errors.Join(c.Close(), f.Close())
}

func unpackInto(ctx context.Context, c *cpio, deb string) error {
	return files(ctx, deb, func(in *tar.Reader) error {
		for {
			h, err := in.Next()
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			name := guestPath(h.Name)
			if !wantedFile(name) {
				continue
			}
			switch h.Typeflag {
			case tar.TypeReg: // without the set-user-ID bit, which guests are to have nowhere
				c.File(name, attributes{perm: h.FileInfo().Mode().Perm()}, in, h.Size)
			case tar.TypeSymlink:
				c.Link(name, h.Linkname)
			case tar.TypeLink:
				c.Link(name, "/"+guestPath(h.Linkname))
			}
		}
	})
}

// unwanted are directories of which no guest needs anything.
var unwanted = regexp.MustCompile(`^usr/lib/(.*/)?(gconv|perl|perl-base|perl5|systemd)(/|$)`)

// wantedFile takes programs and libraries, but of python only what tests use.
func wantedFile(name string) bool {
	if !strings.HasPrefix(name, "usr/bin/") && !strings.HasPrefix(name, "usr/sbin/") && !strings.HasPrefix(name, "usr/lib/") || unwanted.MatchString(name) {
		return false
	}
	if !strings.HasPrefix(name, "usr/lib/python") {
		return true
	}
	return !slices.ContainsFunc(strings.Split(name, "/"), func(part string) bool {
		return slices.ContainsFunc(notInGuests, func(p string) bool { ok, _ := path.Match(p, part); return ok })
	})
}
