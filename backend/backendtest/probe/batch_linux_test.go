package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend/backendtest/attempt"
)

// TestMain makes this binary a probe for batch to start.
func TestMain(m *testing.M) {
	pid := func([]string) (string, error) { return fmt.Sprint(os.Getpid()), nil }
	die := func([]string) (string, error) { return "", unix.Kill(os.Getpid(), unix.SIGKILL) }
	hang := func([]string) (string, error) { time.Sleep(time.Hour); return "", nil }
	exit := func([]string) (string, error) { unix.Exit(3); return "", nil }
	register(map[string]op{
		"test-pid": {0, pid, shared}, "test-die": {0, die, shared}, "test-hang": {0, hang, shared}, "test-exit": {0, exit, shared},
		"test-pid-alone": {0, pid, alone}, "test-die-alone": {0, die, alone}, "test-hang-alone": {0, hang, alone},
		"test-open": {0, leave, shared},
	})
	if len(os.Args) > 1 && (os.Args[1] == "-serve" || os.Args[1] == "-fd") {
		main()
		return
	}
	os.Exit(m.Run())
}

// leave tells the number of a descriptor that it leaves open.
func leave([]string) (string, error) {
	fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return fmt.Sprint(fd), err
}

func results(t *testing.T, names ...string) (all []attempt.Result) {
	t.Helper()
	var in, out bytes.Buffer
	enc := json.NewEncoder(&in)
	for i, op := range names {
		if err := enc.Encode(attempt.Request{ID: fmt.Sprint(i), Op: op}); err != nil {
			t.Fatal(err)
		}
	}
	if err := batch(&in, &out); err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(&out)
	for i, op := range names {
		var r attempt.Result
		if err := dec.Decode(&r); err != nil || r.ID != fmt.Sprint(i) || r.Op != op {
			t.Fatalf("result %d, of %q, is %+v (%v)", i, op, r, err)
		}
		all = append(all, r)
	}
	return all
}

// TestProcesses: attempts share a process that ends with the batch, or have one
// of their own, as the table says.
func TestProcesses(t *testing.T) {
	r := results(t, "test-pid", "test-pid-alone", "test-pid-alone", "test-pid")
	if !r[0].OK || r[0].Detail != r[3].Detail {
		t.Errorf("two attempts do not share a process: %+v, %+v", r[0], r[3])
	}
	if !r[1].OK || r[1].Detail == r[2].Detail || r[1].Detail == r[0].Detail {
		t.Errorf("attempts share a process that need one of their own: %+v", r)
	}
	pid := 0
	if _, err := fmt.Sscan(string(r[0].Detail), &pid); err != nil || unix.Kill(pid, 0) != unix.ESRCH {
		t.Errorf("process %d has not ended (%v)", pid, err)
	}
}

// TestLeftDescriptors: what an attempt leaves open is closed before the next.
func TestLeftDescriptors(t *testing.T) {
	r := results(t, "test-open", "test-open", "test-pid", "test-open")
	if !r[0].OK || r[0].Detail != r[1].Detail || r[0].Detail != r[3].Detail {
		t.Errorf("a descriptor stays open: %+v", r)
	}
}

// TestEndsAreResults: an attempt that ends its process, or does not end, has
// that as its result, and the next one has a process all the same.
func TestEndsAreResults(t *testing.T) {
	limit := attemptTime
	defer func() { attemptTime = limit }()
	attemptTime = 2 * time.Second // also for those that do end
	r := results(t, "test-pid", "test-die", "test-pid", "test-exit", "test-pid", "test-hang", "test-pid", "test-die-alone", "test-pid")
	attemptTime = 100 * time.Millisecond
	r = append(r, results(t, "test-hang-alone")...)
	pids := map[string]bool{}
	for i, want := range []string{1: "SIGKILL", 3: "setup", 5: "timeout", 7: "SIGKILL", 9: "timeout"} {
		got := r[i].Errno + r[i].Signal
		if got != want || r[i].OK != (want == "") {
			t.Errorf("%s: %+v, want %q", r[i].Op, r[i], want)
		}
		if want == "" {
			pids[string(r[i].Detail)] = true
		}
	}
	if len(pids) != 4 { // nothing has ended the last since
		t.Errorf("the attempts had the processes %v", pids)
	}
}
