//go:build linux

// Command bench measures launches against peers that run side by side, and
// prints ratios. See bench/run.sh.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sandboxd/backend"
	"sandboxd/backend/landlock"
	"sandboxd/policy"
	"sandboxd/profiles"
)

func main() {
	if status, is := role(); is {
		os.Exit(status)
	}
	sbx := flag.String("sbx", "bin/sbx", "the sbx to measure")
	n := flag.Int("n", 500, "launches per median")
	many := flag.Int("many", 10000, "launches of the leak check; 0 leaves it out")
	files := flag.Int("files", 100000, "files of the large workspace; 0 leaves it out")
	only := flag.String("only", "", "run only the measurements whose names hold this")
	flag.Parse()
	path, err := filepath.Abs(*sbx)
	if err != nil {
		fail(err)
	}
	b := &bench{sbx: path, n: *n}
	if err := b.setUp(); err != nil {
		fail(err)
	}
	defer b.tearDown()
	for _, m := range []struct {
		name string
		run  func() error
	}{
		{"library", b.library},
		// Before the peers: their orphans come to this process, a subreaper.
		{"leaks", func() error { return b.leaks(*many) }},
		{"floor", b.floor},
		{"namespaces", b.namespaces},
		{"daemon trip", b.daemonTrip},
		{"daemon clients", b.daemonClients},
		{"daemon live", b.daemonLive},
		{"process", b.process},
		{"groups", b.groups},
		{"tree", b.tree},
		{"build", b.build},
		{"workspace", func() error { return b.workspace(*files) }},
	} {
		if !strings.Contains(m.name, *only) {
			continue
		}
		if err := m.run(); err != nil {
			b.tearDown()
			fail(fmt.Errorf("%s: %w", m.name, err))
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}

type bench struct {
	sbx  string
	n    int
	root string
	null *os.File
}

func (b *bench) setUp() error {
	root, err := os.MkdirTemp("", "sbx-bench-")
	if err != nil {
		return err
	}
	if b.root, err = filepath.EvalSymlinks(root); err != nil {
		return err
	}
	b.null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0)
	return err
}

func (b *bench) tearDown() {
	if err := os.RemoveAll(b.root); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
}

func (b *bench) dir(name string) string {
	dir := filepath.Join(b.root, name)
	_ = os.MkdirAll(dir, 0o755) // a failure shows in its first use
	return dir
}

// policy is what `sbx run` resolves for a workspace.
func (b *bench) policy(ws string) (policy.Policy, error) {
	home, _ := os.UserHomeDir()
	spec, _, err := profiles.Resolve(profiles.Request{
		Mode: policy.WorkspaceWrite, Net: policy.NetNone, Workspace: ws, Cwd: ws, Dir: ws,
		HostEnv: os.Environ(), UID: os.Geteuid(), GID: os.Getegid(), Home: home, NoProjectProfile: true,
	})
	if err != nil {
		return policy.Policy{}, err
	}
	return policy.New(spec)
}

func (b *bench) prepare(ws string) (backend.Prepared, error) {
	p, err := b.policy(ws)
	if err != nil {
		return nil, err
	}
	plan, err := landlock.New(landlock.Options{}).Plan(p)
	if err != nil {
		return nil, err
	}
	return plan.Prepare()
}

func (b *bench) launch(p backend.Prepared, dir *os.File) error {
	w, err := p.Start(backend.Command{Path: "/bin/true", Argv: []string{"true"}, Dir: dir, Stdin: b.null, Stdout: b.null, Stderr: b.null, OwnTree: true})
	if err != nil {
		return err
	}
	if r := w.Wait(); r.Outcome.ExitStatus() != 0 {
		return fmt.Errorf("the worker ended with %+v", r.Outcome)
	}
	return nil
}

// rounds takes the measurements in turn, so that whatever else the machine
// does falls on all of them alike, and returns the median of each.
func rounds(n int, fs ...func() error) ([]time.Duration, error) {
	times := make([][]time.Duration, len(fs))
	for i := range n + n/10 {
		for j, f := range fs {
			start := time.Now()
			if err := f(); err != nil {
				return nil, err
			}
			if i >= n/10 { // the first tenth warms up
				times[j] = append(times[j], time.Since(start))
			}
		}
	}
	medians := make([]time.Duration, len(fs))
	for j := range times {
		medians[j] = median(times[j])
	}
	return medians, nil
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

func say(name string, ours, peer time.Duration, peerName string, budget float64) {
	ratio := float64(ours) / float64(peer)
	verdict := "within"
	if ratio > budget {
		verdict = "OVER"
	}
	fmt.Printf("%-34s %8s  %-40s %8s  ratio %.2f  (%s %.2f)\n", name, ours.Round(10*time.Microsecond), peerName, peer.Round(10*time.Microsecond), ratio, verdict, budget)
}

func (b *bench) library() error {
	ws := b.dir("library")
	prepared, err := b.prepare(ws)
	if err != nil {
		return err
	}
	defer prepared.Close()
	dir, err := os.Open(ws)
	if err != nil {
		return err
	}
	defer dir.Close()
	med, err := rounds(b.n, func() error { return b.launch(prepared, dir) }, func() error {
		c := exec.Command("/bin/true")
		c.Dir, c.Env, c.Stdin, c.Stdout, c.Stderr = ws, []string{}, b.null, b.null, b.null
		return c.Run()
	})
	if err != nil {
		return err
	}
	say("library launch of /bin/true", med[0], med[1], "os/exec", 1.25)
	return nil
}

func (b *bench) process() error {
	ws := b.dir("process")
	bwrap, err := exec.LookPath("bwrap")
	if err != nil {
		fmt.Println("SKIP process: no bwrap to compare with")
		return nil
	}
	version, _ := exec.Command(bwrap, "--version").Output()
	run := func(name string, args ...string) func() error {
		return func() error {
			c := exec.Command(name, args...)
			c.Dir = ws
			return c.Run()
		}
	}
	med, err := rounds(b.n, run(b.sbx, "run", "--", "true"), run(bwrap, "--ro-bind", "/", "/", "--unshare-all", "true"))
	if err != nil {
		return err
	}
	say("sbx run -- true, whole process", med[0], med[1], string(bytes.TrimSpace(version))+" --unshare-all", 1.0)
	return nil
}

// build compiles the same C program by the same make inside and outside.
func (b *bench) build() error {
	if _, err := exec.LookPath("gcc"); err != nil {
		fmt.Println("SKIP build: no gcc")
		return nil
	}
	ws := b.dir("build")
	var makefile strings.Builder
	makefile.WriteString("all: ")
	const units = 24
	for i := range units {
		fmt.Fprintf(&makefile, "u%d.o ", i)
		src := fmt.Sprintf("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nint f%d(int n){char b[64];int i,s=0;for(i=0;i<n;i++){snprintf(b,sizeof b,\"%%d\",i);s+=strlen(b);}return s;}\n", i)
		if err := os.WriteFile(filepath.Join(ws, fmt.Sprintf("u%d.c", i)), []byte(src), 0o644); err != nil {
			return err
		}
	}
	makefile.WriteString("\n%.o: %.c\n\tgcc -O2 -c -o $@ $<\n")
	if err := os.WriteFile(filepath.Join(ws, "Makefile"), []byte(makefile.String()), 0o644); err != nil {
		return err
	}
	makeIt := func(argv ...string) func() error {
		return func() error {
			objects, _ := filepath.Glob(filepath.Join(ws, "*.o"))
			for _, o := range objects {
				if err := os.Remove(o); err != nil {
					return err
				}
			}
			c := exec.Command(argv[0], argv[1:]...)
			c.Dir = ws
			if out, err := c.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}
	}
	med, err := rounds(20, makeIt(b.sbx, "run", "--", "make", "-j2"), makeIt("make", "-j2"))
	if err != nil {
		return err
	}
	say(fmt.Sprintf("make of %d C files inside", units), med[0], med[1], "the same make outside", 1.05)
	if _, err := exec.LookPath("go"); err != nil {
		fmt.Println("SKIP go build: no go")
		return nil
	}
	return b.goBuild()
}

// goBuild rebuilds one package of a module against a warm build cache, inside
// and outside, each with a cache of its own.
func (b *bench) goBuild() error {
	ws := b.dir("gobuild")
	var src strings.Builder
	src.WriteString("package main\n\nimport (\n\t\"fmt\"\n\t\"net/http\"\n)\n\n")
	for i := range 400 {
		fmt.Fprintf(&src, "func f%d(m map[string]int) { for k, v := range m { fmt.Println(k, v, http.StatusOK+%d) } }\n", i, i)
	}
	src.WriteString("\nfunc main() { f0(nil) }\n")
	for name, text := range map[string]string{"go.mod": "module m\n\ngo 1.21\n", "main.go": src.String()} {
		if err := os.WriteFile(filepath.Join(ws, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	round := 0
	build := func(argv ...string) func() error {
		return func() error {
			round++ // a change, so that the package is compiled and linked anew
			f, err := os.OpenFile(filepath.Join(ws, "main.go"), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			fmt.Fprintf(f, "\nvar v%d = %d\n", round, round)
			if err := f.Close(); err != nil {
				return err
			}
			c := exec.Command(argv[0], append(argv[1:], "go", "build", "-o", filepath.Join(ws, "out"), ".")...)
			c.Dir = ws
			c.Env = append(os.Environ(), "GOCACHE="+filepath.Join(ws, ".cache-"+filepath.Base(argv[0])))
			if out, err := c.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}
	}
	med, err := rounds(20, build(b.sbx, "run", "--env", "GOCACHE", "--"), build("env"))
	if err != nil {
		return err
	}
	say("go build inside", med[0], med[1], "the same go build outside", 1.05)
	return nil
}

// workspace compares launches in a workspace of few and of many files.
func (b *bench) workspace(files int) error {
	if files == 0 {
		return nil
	}
	small, large := b.dir("small"), b.dir("large")
	for i := range files {
		dir := filepath.Join(large, fmt.Sprint(i/1000))
		if i%1000 == 0 {
			if err := os.Mkdir(dir, 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o644); err != nil {
			return err
		}
	}
	for i := range 10 {
		if err := os.WriteFile(filepath.Join(small, fmt.Sprint(i)), nil, 0o644); err != nil {
			return err
		}
	}
	in := func(ws string) func() error {
		return func() error {
			c := exec.Command(b.sbx, "run", "--", "true")
			c.Dir = ws
			return c.Run()
		}
	}
	med, err := rounds(b.n/2, in(large), in(small))
	if err != nil {
		return err
	}
	say(fmt.Sprintf("sbx run in %d files", files), med[0], med[1], "in 10 files", 1.05)
	return nil
}

// leaks launches many workers and counts what they leave behind.
func (b *bench) leaks(n int) error {
	if n == 0 {
		return nil
	}
	ws, temp := b.dir("leaks"), b.dir("temp")
	if err := os.Setenv("TMPDIR", temp); err != nil {
		return err
	}
	prepared, err := b.prepare(ws)
	if err != nil {
		return err
	}
	dir, err := os.Open(ws)
	if err != nil {
		return err
	}
	defer dir.Close()
	for range 5 {
		if err := b.launch(prepared, dir); err != nil {
			return err
		}
	}
	before, err := b.count(temp)
	if err != nil {
		return err
	}
	start := time.Now()
	for i := range n {
		if err := b.launch(prepared, dir); err != nil {
			return fmt.Errorf("launch %d: %w", i, err)
		}
	}
	after, err := b.count(temp)
	if err != nil {
		return err
	}
	fmt.Printf("%d launches in %s: descriptors %d -> %d, threads %d -> %d, temp directories %d -> %d, shm directories %d -> %d, children %d -> %d\n",
		n, time.Since(start).Round(time.Millisecond), before[0], after[0], before[1], after[1], before[2], after[2], before[3], after[3], before[4], after[4])
	if err := prepared.Close(); err != nil {
		return err
	}
	for i := range after {
		if after[i] > before[i]+8 { // a berth that is made ahead comes and goes
			return errors.New("launches leak")
		}
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		return fmt.Errorf("%d temp directories are left after closing (%v)", len(left), err)
	}
	return nil
}

func (b *bench) count(temp string) (counts [5]int, err error) {
	for i, glob := range []string{"/proc/self/fd/*", "/proc/self/task/*", temp + "/*", "/dev/shm/sbx-*"} {
		names, err := filepath.Glob(glob)
		if err != nil {
			return counts, err
		}
		counts[i] = len(names)
	}
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	for _, t := range tasks {
		children, _ := os.ReadFile(t)
		counts[4] += len(bytes.Fields(children))
	}
	return counts, err
}
