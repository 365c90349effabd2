package main

import (
	"bufio"
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd/test/kernels/wire"
)

func TestVerdict(t *testing.T) {
	begin := []wire.Record{{Facts: &wire.Facts{}}, {Begin: "doctor"}}
	const cut = "the machine ended before its last record"
	for _, c := range []struct {
		name  string
		a     attempt
		want  string
		again bool
	}{
		{"a good end", attempt{Exit: 1}, "", false},
		{"a hang", attempt{Exit: -1, TimedOut: true, Cut: cut, records: begin}, "hung in doctor", true},
		{"a hang before init", attempt{Exit: -1, TimedOut: true, Cut: cut}, "hung while booting", true},
		{"a panic", attempt{Exit: 0, Cut: cut, records: begin[:1]}, "panicked or reset itself before its first job", true},
		{"init gave up", attempt{Exit: 3, Cut: cut}, "with QEMU's status 3", false},
		{"init gave up after its last record", attempt{Exit: 3}, "after its last record", false},
		{"QEMU did not start", attempt{Exit: 1, Cut: cut}, "while booting with QEMU's status 1: " + cut, false},
		{"a record is missing", attempt{Exit: 1, Cut: "record 3 is missing"}, "record 3 is missing", false},
		{"QEMU was killed", attempt{Exit: -1, Cut: cut}, "status -1", false},
	} {
		got, again := c.a.verdict(1)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) || again != c.again {
			t.Errorf("%s: got %q, again %t; want %q, %t", c.name, got, again, c.want, c.again)
		}
	}
}

func TestMemory(t *testing.T) {
	for size, want := range map[int64]int{0: 768, 20 << 20: 768, 200 << 20: 900} {
		if got := memoryFor(size); got != want {
			t.Errorf("%d MB: got %d, want %d", size>>20, got, want)
		}
	}
}

func TestQEMUCommandLine(t *testing.T) {
	for name, wanted := range map[string][]string{
		amd64: {"-cpu max,-cx16", "-M pc", "isa-debug-exit,iobase=0xf4,iosize=4", "-serial file:/c -serial file:/r,s"},
		arm64: {"-cpu neoverse-n1", "-M virt", "-serial file:/c -chardev file,id=results,path=/r,,s -device pci-serial,chardev=results"},
	} {
		b := &boot{arch: arches[name], kernel: kernel{Dir: "/k"}, initrd: "/i", memory: 800, append: "lsm=yama"}
		got := strings.Join(b.qemu("file:/c", "/r,s"), " ")
		wanted = append(wanted, "-accel tcg", "-smp 1", "-m 800", "-no-reboot", "-kernel /k/vmlinuz -initrd /i -append lsm=yama ")
		for _, want := range wanted {
			if !strings.Contains(got, want) {
				t.Errorf("%s: there is no %q", got, want)
			}
		}
	}
}

// A machine's kernel writes where QEMU reads it.
func TestPrepareByArch(t *testing.T) {
	base := filepath.Join(t.TempDir(), "base")
	if err := os.WriteFile(base, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{amd64: "console=ttyS0 quiet ", arm64: "console=ttyAMA0 quiet "} {
		b, err := prepare(t.TempDir(), machine{Name: "m", Arch: name}, kernel{}, &initramfs{base: base}, nil)
		if err != nil || !strings.HasPrefix(b.append, want) || b.arch.name != name {
			t.Errorf("%s: %+v, %v", name, b, err)
		}
	}
}

// Timers are coarse where nobody asks for others.
func TestPrepareTimers(t *testing.T) {
	base := filepath.Join(t.TempDir(), "base")
	if err := os.WriteFile(base, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, fine := range []bool{false, true} {
		b, err := prepare(t.TempDir(), machine{Name: "m", Arch: amd64, HighRes: fine}, kernel{}, &initramfs{base: base}, nil)
		if err != nil || strings.Contains(b.append, " "+lowResolution) == fine {
			t.Errorf("%t: %+v, %v", fine, b, err)
		}
	}
}

// Every test meets the timers that kernels have by themselves.
func TestHighResolutionRunsAll(t *testing.T) {
	all, err := machines(machinesTOML)
	if err != nil {
		t.Fatal(err)
	}
	run := map[string]bool{}
	for _, m := range all {
		if m.HighRes {
			for _, j := range jobsOf(m) {
				if j.Kind == kindTest {
					run[j.Package+" "+j.Args[3]] = true
				}
			}
		}
	}
	for _, p := range testPackages {
		if !p.foreign && !run[p.path+" "+p.run] {
			t.Errorf("no machine with highres runs %s", p.path)
		}
	}
}

// A machine gets the tests that it runs; a person's all of them.
func TestInitramfsHasItsTests(t *testing.T) {
	dir := t.TempDir()
	base := &initramfs{base: filepath.Join(dir, "base"), tests: map[string]string{}}
	for _, p := range testPackages[:2] {
		base.tests[p.path] = filepath.Join(dir, p.name())
	}
	for _, file := range append(slices.Collect(maps.Values(base.tests)), base.base) {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		jobs []job
		want []bool // for each of the two
	}{
		{nil, []bool{true, true}},
		{[]job{{Kind: kindDoctor}}, []bool{false, false}},
		{[]job{{Kind: kindTest, Package: testPackages[1].path}}, []bool{false, true}},
	} {
		file := filepath.Join(dir, "initrd")
		if _, err := base.writeFor(file, kernel{}, nil, c.jobs); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range testPackages[:2] {
			if got := strings.Contains(string(text), strings.Trim(p.binary(), "/")+"\x00"); got != c.want[i] {
				t.Errorf("%v: %s: %t", c.jobs, p.path, got)
			}
		}
	}
}

// Where a power-off is no status of its own, the last record tells it from a
// reset.
func TestVerdictOfPowerOff(t *testing.T) {
	for cut, want := range map[string]bool{"": false, "the machine ended before its last record": true} {
		if failure, again := (attempt{Exit: 0, Cut: cut}).verdict(arches[arm64].done); again != want || (failure != "") != want {
			t.Errorf("cut %q: %q, again %t", cut, failure, again)
		}
	}
}

// What a machine's program started ends with it.
func TestCommandEndsWithItsChildren(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	c := command(ctx, "sh", "-c", "sleep 60 & echo $!; wait")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := c.Wait(); err == nil {
		t.Error("it ended well")
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		state, _ := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(child)).Output()
		if syscall.Kill(child, 0) != nil || strings.HasPrefix(string(state), "Z") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d is still there", child)
		}
	}
}

func TestJobsAreNamedOnce(t *testing.T) {
	all, _ := data(t)
	for _, m := range all {
		seen := map[string]bool{}
		for _, j := range jobsOf(m) {
			if seen[j.Name] || strings.ContainsAny(j.Name, "/ ") {
				t.Errorf("%s: job %q is there twice, or cannot be a file", m.Name, j.Name)
			}
			seen[j.Name] = true
			if j.Seconds <= 0 || len(j.Args) == 0 || j.Dir == "" {
				t.Errorf("%s: job %q: %+v", m.Name, j.Name, j)
			}
		}
	}
}

func TestCollect(t *testing.T) {
	piece := func(job string, stderr bool, text string) wire.Record {
		return wire.Record{Output: &wire.Output{Job: job, Err: stderr, Data: []byte(text)}}
	}
	outputs, trouble := collect([]wire.Record{
		{Begin: "a"}, piece("a", false, "o1"), piece("a", true, "e"), piece("a", false, "o2"),
		{Result: &wire.Result{Name: "a", Exit: 3, Trouble: "left\x1b behind"}}, {Result: &wire.Result{Name: "c", Trouble: "left behind"}},
		{Begin: "b"}, piece("b", false, "cut"),
	}, []job{{Job: wire.Job{Name: "a"}, Kind: kindTest}, {Job: wire.Job{Name: "c"}, Kind: kindCase}})
	if a := outputs["a"]; len(outputs) != 2 || string(a.stdout) != "o1o2" || string(a.stderr) != "e" || a.Result.Exit != 3 {
		t.Errorf("got %+v", outputs)
	}
	if !slices.Equal(trouble, []string{`"a: left\x1b behind"`}) {
		t.Errorf("trouble %q", trouble)
	}
}
