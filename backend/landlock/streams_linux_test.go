package landlock

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend"
	"sandboxd/capture"
	"sandboxd/policy"
)

// launchIn starts argv with the streams that c has; those that it has not are the
// null device.
func launchIn(t *testing.T, prepared backend.Prepared, ws string, c backend.Command, argv ...string) backend.Worker {
	t.Helper()
	w, err := tryLaunchIn(t, prepared, ws, c, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func tryLaunchIn(t *testing.T, prepared backend.Prepared, ws string, c backend.Command, argv ...string) (backend.Worker, error) {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, f := range []**os.File{&c.Stdin, &c.Stdout, &c.Stderr} {
		if *f == nil {
			*f = null
		}
	}
	if c.Dir, err = os.Open(ws); err != nil {
		t.Fatal(err)
	}
	defer c.Dir.Close()
	if c.Path, err = exec.LookPath(argv[0]); err != nil {
		t.Fatal(err)
	}
	c.Argv = argv
	return prepared.Start(c)
}

func newCapture(t *testing.T, o capture.Options) *capture.Capture {
	t.Helper()
	c, err := capture.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// waitAtOnce waits for a worker that has nothing to wait for.
func waitAtOnce(t *testing.T, w backend.Worker) backend.Result {
	t.Helper()
	late := time.AfterFunc(10*time.Second, func() {
		t.Error("the worker hangs")
		w.Stop(0)
	})
	defer late.Stop()
	return w.Wait()
}

func pipes(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	return r, w
}

// TestStdinOfWorkers: whatever it is, the worker gets it as it is, and nobody
// waits for more than the worker does.
func TestStdinOfWorkers(t *testing.T) {
	ws := realTemp(t)
	prepared := prepare(t, testPolicy(t, ws, nil))
	run := func(t *testing.T, stdin *os.File, stopAfter time.Duration, argv ...string) (string, backend.Result) {
		t.Helper()
		out := newCapture(t, capture.Options{})
		w := launchIn(t, prepared, ws, backend.Command{Stdin: stdin, Stdout: out.File(), Stderr: out.File(), OwnTree: true}, argv...)
		if stopAfter > 0 {
			time.AfterFunc(stopAfter, func() { w.Stop(0) })
		}
		res := waitAtOnce(t, w)
		if err := out.Drain(0); err != nil {
			t.Error(err)
		}
		return out.Output().String(), res
	}
	t.Run("null", func(t *testing.T) {
		if out, res := run(t, nil, 0, "cat"); out != "" || res.Outcome.ExitStatus() != 0 {
			t.Errorf("%q, %+v", out, res.Outcome)
		}
	})
	t.Run("file", func(t *testing.T) {
		name := filepath.Join(realTemp(t), "outside") // what is handed in may be read
		if err := os.WriteFile(name, []byte("content\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if out, res := run(t, f, 0, "cat"); out != "content\n" || res.Outcome.ExitStatus() != 0 {
			t.Errorf("%q, %+v", out, res.Outcome)
		}
	})
	t.Run("pipe with data", func(t *testing.T) {
		r, w := pipes(t)
		_, _ = w.WriteString("data")
		_ = w.Close()
		if out, res := run(t, r, 0, "cat"); out != "data" || res.Outcome.ExitStatus() != 0 {
			t.Errorf("%q, %+v", out, res.Outcome)
		}
	})
	t.Run("open pipe", func(t *testing.T) {
		r, w := pipes(t)
		if out, res := run(t, r, 0, "echo", "done"); out != "done\n" || res.Outcome.ExitStatus() != 0 {
			t.Errorf("not read: %q, %+v", out, res.Outcome)
		}
		// The control: what reads it waits until it is ended.
		_, _ = w.WriteString("said")
		if out, res := run(t, r, 300*time.Millisecond, "cat"); out != "said" || res.Outcome.Kind != backend.Signaled {
			t.Errorf("read: %q, %+v", out, res.Outcome)
		}
	})
	t.Run("unix socket", func(t *testing.T) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		theirs, ours := os.NewFile(uintptr(pair[0]), "theirs"), os.NewFile(uintptr(pair[1]), "ours")
		defer theirs.Close()
		_, _ = ours.WriteString("by socket")
		_ = ours.Close()
		if out, res := run(t, theirs, 0, "cat"); out != "by socket" || res.Outcome.ExitStatus() != 0 {
			t.Errorf("%q, %+v", out, res.Outcome)
		}
	})
	t.Run("closed", func(t *testing.T) {
		r, _ := pipes(t)
		_ = r.Close()
		var setup *backend.SetupError
		if _, err := tryLaunchIn(t, prepared, ws, backend.Command{Stdin: r, OwnTree: true}, "true"); !errors.As(err, &setup) || setup.Step != "descriptors" {
			t.Errorf("a closed file gives %v", err)
		}
	})
}

// TestFullDiskOfWorkers: the worker's own write fails, and its status is its own.
func TestFullDiskOfWorkers(t *testing.T) {
	ws := realTemp(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	w := launchIn(t, prepare(t, testPolicy(t, ws, nil)), ws, backend.Command{Stdout: full, OwnTree: true}, "sh", "-c", "echo x || exit 9")
	if res := waitAtOnce(t, w); res.Outcome.ExitStatus() != 9 {
		t.Errorf("%+v", res.Outcome)
	}
}

// TestCaptureOfWorkers: 64 MiB arrive as they were through a pipe; a capture keeps
// what it shall, counts all, keeps no worker from writing and takes no memory for
// what it does not keep.
func TestCaptureOfWorkers(t *testing.T) {
	const size = 64 << 20
	ws := realTemp(t)
	prepared := prepare(t, testPolicy(t, ws, nil))
	sent := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(sent)
	if err := os.WriteFile(filepath.Join(ws, "random"), sent, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Run("pipe", func(t *testing.T) {
		r, w := pipes(t)
		worker := launchIn(t, prepared, ws, backend.Command{Stdout: w, OwnTree: true}, "cat", "random")
		_ = w.Close()
		got := sha256.New()
		if _, err := io.Copy(got, r); err != nil {
			t.Error(err)
		}
		if res := waitAtOnce(t, worker); res.Outcome.ExitStatus() != 0 || [32]byte(got.Sum(nil)) != sha256.Sum256(sent) {
			t.Errorf("%+v, or other bytes than were sent", res.Outcome)
		}
	})
	for _, limit := range []int{1 << 20, size} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			out := newCapture(t, capture.Options{MaxOutput: limit})
			w := launchIn(t, prepared, ws, backend.Command{Stdout: out.File(), OwnTree: true}, "cat", "random")
			res := waitAtOnce(t, w)
			if err := out.Drain(0); err != nil {
				t.Error(err)
			}
			runtime.ReadMemStats(&after)
			o := out.Output()
			if res.Outcome.ExitStatus() != 0 || o.Bytes != size || o.Truncated != (limit < size) || o.Omitted() != int64(size-limit) {
				t.Errorf("%+v, %d bytes, %d omitted, truncated %v", res.Outcome, o.Bytes, o.Omitted(), o.Truncated)
			}
			if !bytes.HasPrefix(sent, o.Head) || !bytes.HasSuffix(sent, o.Tail) {
				t.Error("other bytes are kept than were sent")
			}
			// Three times, as what grows is copied, again and again, into twice as much.
			if took := after.TotalAlloc - before.TotalAlloc; took > uint64(3*limit)+8<<20 {
				t.Errorf("%d MiB were allocated for %d MiB", took>>20, limit>>20)
			}
		})
	}
}

// TestConversationWithWorker: what a worker writes is there before it goes on, for
// it goes on only when it is answered.
func TestConversationWithWorker(t *testing.T) {
	ws := realTemp(t)
	out := newCapture(t, capture.Options{})
	in, say := pipes(t)
	w := launchIn(t, prepare(t, testPolicy(t, ws, nil)), ws, backend.Command{Stdin: in, Stdout: out.File(), OwnTree: true},
		"sh", "-c", `while printf '?' && read -r word; do printf '%s' "$word"; done; exit 4`)
	_ = in.Close()
	want := "?"
	for i := range 50 {
		for deadline := time.Now().Add(10 * time.Second); string(out.Output().Head) != want; time.Sleep(100 * time.Microsecond) {
			if time.Now().After(deadline) {
				t.Fatalf("turn %d: %q", i, out.Output().Head)
			}
		}
		want += fmt.Sprintf("word%d?", i)
		if _, err := fmt.Fprintf(say, "word%d\n", i); err != nil {
			t.Fatal(err)
		}
	}
	_ = say.Close()
	if res := waitAtOnce(t, w); res.Outcome.ExitStatus() != 4 {
		t.Errorf("%+v", res.Outcome)
	}
	if err := out.Drain(0); err != nil || string(out.Output().Head) != want {
		t.Errorf("%q, %v", out.Output().Head, err)
	}
}

// TestReaderOfWorkerLeaves: it ends as it does alone.
func TestReaderOfWorkerLeaves(t *testing.T) {
	ws := realTemp(t)
	r, out := pipes(t)
	w := launchIn(t, prepare(t, testPolicy(t, ws, nil)), ws, backend.Command{Stdout: out, OwnTree: true}, "yes")
	_ = out.Close()
	if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
		t.Error(err)
	}
	_ = r.Close()
	if res := waitAtOnce(t, w); res.Outcome.SignalName != "SIGPIPE" {
		t.Errorf("%+v", res.Outcome)
	}
}

// TestChildHoldsOutput: a child that a worker leaves behind ends with it, and so
// does the stream that it holds: where the tree is the launcher's own, and where it
// is another's but the report says that it is ended as a whole (tree.kill is
// enforced). Elsewhere the child goes on, and the grace bounds the wait for its
// stream, which is told.
func TestChildHoldsOutput(t *testing.T) {
	ws := realTemp(t)
	prepared := prepare(t, testPolicy(t, ws, nil))
	for _, how := range []string{"sleep 300 &", "setsid sleep 300 &"} {
		for _, own := range []bool{true, false} {
			const grace = 200 * time.Millisecond
			out := newCapture(t, capture.Options{})
			began := time.Now()
			w := launchIn(t, prepared, ws, backend.Command{Stdout: out.File(), Stderr: out.File(), OwnTree: own}, "sh", "-c", how+" echo $!")
			res := waitAtOnce(t, w)
			err := out.Drain(grace)
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("%q: it takes %v", how, took)
			}
			pid := 0
			if _, serr := fmt.Sscan(strings.TrimSpace(out.Output().String()), &pid); serr != nil {
				t.Fatalf("%q: no pid in %q", how, out.Output())
			}
			pid = outside(pid)
			ended := own || res.Enforcement.State(policy.TreeKill).Status == backend.Enforced
			living := func() bool {
				stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
				return err == nil && !strings.Contains(string(stat), ") Z ") // dead, and nobody's to reap
			}
			alive := living()
			// Another's child is killed and not waited for. Its streams are closed
			// before it is dead.
			for end := time.Now().Add(5 * time.Second); alive && ended && !own && time.Now().Before(end); alive = living() {
				time.Sleep(time.Millisecond)
			}
			if ended && (alive || err != nil || len(res.Survivors) > 0) {
				t.Errorf("%q: alive %v, %v, survivors %v", how, alive, err, res.Survivors)
			}
			if !ended && (!alive || !errors.Is(err, capture.ErrHeld)) {
				t.Errorf("%q, the tree another's: alive %v, %v", how, alive, err)
			}
			if alive {
				_ = unix.Kill(pid, unix.SIGKILL)
				_, _ = unix.Wait4(pid, nil, 0, nil) // ours if an earlier launch made this process a subreaper
			}
		}
	}
}
