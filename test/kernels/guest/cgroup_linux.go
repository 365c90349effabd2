package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroup is a job's own, with the leaf that the job starts in.
type cgroup struct {
	dir  string
	leaf *os.File
}

// delegatedFiles are those that the owner of a delegated cgroup must be able to
// write, and no others: limits stay the delegater's (cgroup-v2.rst, "Model of
// Delegation").
func delegatedFiles(dir string) []string {
	return []string{
		dir,
		filepath.Join(dir, "cgroup.procs"),
		filepath.Join(dir, "cgroup.subtree_control"),
		filepath.Join(dir, "cgroup.threads"),
	}
}

// delegate makes a job's cgroup. What it returns is to be removed, whatever the
// error.
//
//	job-NAME      the limits, and every controller for its children; no process, as both at once is refused
//	job-NAME/job  the job
func delegate(name string, uid int, limits map[string]string) (g cgroup, err error) {
	g.dir = filepath.Join(cgroupRoot, "job-"+name)
	leaf := filepath.Join(g.dir, "job")
	if err := enableControllers(cgroupRoot); err != nil {
		return g, err
	}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return g, err
	}
	for file, limit := range limits {
		if err := os.WriteFile(filepath.Join(g.dir, file), []byte(limit), 0); err != nil {
			return g, err
		}
	}
	if err := enableControllers(g.dir); err != nil {
		return g, err
	}
	if err := os.Mkdir(leaf, 0o755); err != nil {
		return g, err
	}
	for _, file := range append(delegatedFiles(g.dir), delegatedFiles(leaf)...) {
		if err := os.Chown(file, uid, uid); err != nil {
			return g, err
		}
	}
	g.leaf, err = os.Open(leaf)
	return g, err
}

// enableControllers gives a cgroup's children all that it has itself.
func enableControllers(dir string) error {
	available, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(available)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0); err != nil {
			return fmt.Errorf("controller %s: %w", c, err)
		}
	}
	return nil
}

// remove kills what is in the cgroup, where the kernel can (5.14), and removes it
// and all that the job made below it.
func (g cgroup) remove() error {
	if g.leaf != nil {
		_ = g.leaf.Close()
	}
	if !exists(g.dir) {
		return nil
	}
	if kill := filepath.Join(g.dir, "cgroup.kill"); exists(kill) {
		if err := os.WriteFile(kill, []byte("1"), 0); err != nil {
			return err
		}
	}
	// A cgroup is busy until the last process in it has been reaped, and a little longer.
	var err error
	for end := time.Now().Add(killTime); time.Now().Before(end); time.Sleep(tick) {
		if err = removeTree(g.dir); !errors.Is(err, unix.EBUSY) {
			return err
		}
		reap()
	}
	return err
}

// removeTree removes a cgroup's directories, the innermost first. Its files are
// the kernel's.
func removeTree(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	for _, d := range slices.Backward(dirs) {
		err = errors.Join(err, os.Remove(d))
	}
	return err
}
