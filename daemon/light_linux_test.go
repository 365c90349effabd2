package daemon

import (
	"os"
	"testing"
	"time"

	"sandboxd/protocol"
)

// TestWorkerFiles: a worker that runs takes one thread of the monitor, and no more
// descriptors than it is counted with; it holds no end of its streams.
func TestWorkerFiles(t *testing.T) {
	needLandlock(t)
	m, socket := serve(t, nil)
	c := dial(t, socket)
	count := func(dir string) int {
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	more := func(n int) {
		for range n {
			c.launch(func(m *protocol.Launch) { m.Stdio.Stdin = "stream" }, "sleep", "3600")
			until[*protocol.Started](c)
		}
		time.Sleep(10 * aheadTime) // what is made ahead is there
	}
	more(8) // the runtime has its threads, and the plan what it keeps
	files, threads, places := count("/proc/self/fd"), count("/proc/self/task"), m.places.Load()
	const n = 24 // of 32 that may be in flight
	more(n)
	perFile, perThread := float64(count("/proc/self/fd")-files-int(m.places.Load()-places))/n, float64(count("/proc/self/task")-threads)/n
	t.Logf("%.1f descriptors and %.1f threads for each", perFile, perThread)
	if perFile > workerFiles-8 || perThread > 2.2 { // the runtime may get a few more of its own
		t.Errorf("%.1f descriptors and %.1f threads for each", perFile, perThread)
	}
}

// aheadTime is about how long a worker runs before something is made for the next one.
const aheadTime = 20 * time.Millisecond

// TestOutputEndsWithItsWriter: the monitor does not hold what the worker has closed.
func TestOutputEndsWithItsWriter(t *testing.T) {
	needLandlock(t)
	_, socket := serve(t, nil)
	c := dial(t, socket)
	id := c.launch(func(m *protocol.Launch) { m.Stdio.Stdin = "stream" }, "sh", "-c", "exec >&- 2>&-; read x")
	until[*protocol.Started](c)
	for ended := map[string]bool{}; len(ended) < 2; {
		if o := until[*protocol.Output](c); o.EOF {
			ended[o.Stream] = true
		}
	}
	c.say(&protocol.Stdin{ID: id, EOF: true})
	if r := c.finish(id); !r.report.Ran {
		t.Errorf("%+v", r.failure)
	}
}
