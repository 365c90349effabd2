package main

import (
	"bufio"
	"context"
	"os/exec"
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
		got, again := c.a.verdict()
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
	b := &boot{kernel: kernel{Dir: "/k"}, initrd: "/i", memory: 800, append: "console=ttyS0 lsm=yama"}
	got := strings.Join(b.qemu("file:/c", "file:/r"), " ")
	for _, want := range []string{
		"-accel tcg", "-cpu max,-cx16", "-M pc", "-smp 1", "-m 800", "-no-reboot", "isa-debug-exit,iobase=0xf4,iosize=4",
		"-kernel /k/vmlinuz -initrd /i -append console=ttyS0 lsm=yama -serial file:/c -serial file:/r",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s: there is no %q", got, want)
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
