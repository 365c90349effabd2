//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"time"

	"sandboxd/daemon"
	"sandboxd/internal/audit"
	"sandboxd/internal/confine"
	"sandboxd/internal/listen"
	"sandboxd/protocol"
)

// daemonName is the argv[0] of the daemon that is measured: this program again.
const daemonName = "sandboxd-bench"

// profileVariable names a file for a profile of the monitor's use of processors.
const profileVariable = "SANDBOXD_BENCH_PROFILE"

// role runs what this program is by its argv[0], if that is not the benchmark.
func role() (status int, is bool) {
	switch os.Args[0] {
	case daemon.GuardName:
		return daemon.Guard(), true
	case daemon.FrontName:
		return told(daemon.Front(daemon.FrontOptions{Version: "bench", Confine: func() (string, error) {
			return daemon.Confine(&confine.IDs{UID: 65534, GID: 65534}, false)
		}})), true
	case daemonName:
		return told(serve(os.Args[1])), true
	}
	return 0, false
}

func told(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

// serve is the daemon, with an audit log, until its caller is gone.
func serve(dir string) error {
	if to := os.Getenv(profileVariable); to != "" {
		f, err := os.Create(to + "." + filepath.Base(filepath.Dir(dir))) // one for each daemon
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	log, err := audit.Open(filepath.Join(dir, "audit"), audit.Options{Program: "bench"})
	if err != nil {
		return err
	}
	defer log.Close()
	m, err := daemon.New(daemon.Options{
		Socket: listen.Options{Path: filepath.Join(dir, "run", "s"), Mode: listen.User}, Version: "bench", Audit: log,
		Features: func() any { return nil },
		Log:      slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		stop()
	}()
	err = m.Run(ctx, 0)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// measured is a daemon that runs.
type measured struct {
	cmd    *exec.Cmd
	stdin  *os.File
	socket string
}

func (b *bench) startDaemon() (*measured, error) {
	dir := filepath.Join(b.root, "daemon")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	d := &measured{stdin: w, socket: filepath.Join(dir, "run", "s")}
	d.cmd = &exec.Cmd{Path: "/proc/self/exe", Args: []string{daemonName, dir}, Stdin: r, Stdout: os.Stdout, Stderr: os.Stderr, Env: os.Environ()}
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if c, err := d.dial(b.dir("daemon-ws")); err == nil {
			return d, c.conn.Close()
		} else if time.Now().After(end) {
			return nil, errors.Join(err, d.stop())
		}
	}
}

func (d *measured) stop() error {
	_ = d.stdin.Close()
	return d.cmd.Wait()
}

// peer is a client of it.
type peer struct {
	conn *net.UnixConn
	r    *protocol.Reader
	ws   string
	last int64
}

func (d *measured) dial(ws string) (*peer, error) {
	conn, err := listen.Dial(context.Background(), d.socket)
	if err != nil {
		return nil, err
	}
	p := &peer{conn: conn, r: protocol.NewReader(conn, protocol.MaxAnswer), ws: ws}
	if err := p.say(&protocol.ClientHello{Versions: []int64{1}, Client: protocol.Peer{Name: "bench", Version: "1"}}); err != nil {
		return nil, err
	}
	_, err = p.hear()
	return p, err
}

func (p *peer) say(m protocol.Message) error {
	frame, err := protocol.AppendFrame(nil, m, protocol.MaxFrame)
	if err != nil {
		return err
	}
	_, err = p.conn.Write(frame)
	return err
}

func (p *peer) hear() (protocol.Message, error) {
	frame, err := p.r.ReadFrame()
	if err != nil {
		return nil, err
	}
	m, err := protocol.ParseAnswer(frame)
	if err != nil {
		return nil, err
	}
	if e, ok := m.(*protocol.Error); ok {
		return nil, e
	}
	return m, nil
}

func (p *peer) launch(stdio *protocol.Stdio, argv ...string) error {
	p.last++
	m := &protocol.Launch{ID: p.last, Dir: protocol.Bytes(p.ws), NoProjectProfile: true, Stdio: stdio, Backend: "landlock"}
	if stdio != nil {
		m.OutputWindow = 64 << 10
	}
	for _, a := range argv {
		m.Argv = append(m.Argv, protocol.Bytes(a))
	}
	return p.say(m)
}

// run launches /bin/true and waits for its report.
func (p *peer) run() error {
	if err := p.launch(nil, "/bin/true"); err != nil {
		return err
	}
	for {
		m, err := p.hear()
		if err != nil {
			return err
		}
		if exit, ok := m.(*protocol.Exit); ok {
			if !strings.Contains(string(exit.Report), `"exit_status":0`) {
				return fmt.Errorf("the worker ended otherwise: %s", exit.Report)
			}
			return nil
		}
	}
}

// processes are the monitor and the front.
func (d *measured) processes() (monitor, front int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		line, rerr := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if name, _, _ := strings.Cut(string(line), "\x00"); err == nil && rerr == nil && name == daemon.FrontName && parentOf(pid) == d.cmd.Process.Pid {
			front = pid
		}
	}
	return d.cmd.Process.Pid, front
}

// processorTime is what a process has used, without its children: proc_pid_stat(5).
func processorTime(pid int) time.Duration {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * (time.Second / 100) // USER_HZ
}

// memory is the resident memory of the monitor and of the front, and that of the
// guard, in KiB.
func (d *measured) memory() (both, guard int, err error) {
	both = residentOf(d.cmd.Process.Pid)
	entries, err := os.ReadDir("/proc")
	for _, e := range entries {
		pid, nerr := strconv.Atoi(e.Name())
		line, rerr := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if nerr != nil || rerr != nil || parentOf(pid) != d.cmd.Process.Pid {
			continue
		}
		switch name, _, _ := strings.Cut(string(line), "\x00"); name {
		case daemon.FrontName:
			both += residentOf(pid)
		case daemon.GuardName:
			guard = residentOf(pid)
		}
	}
	return both, guard, err
}

func statusOf(pid int, field string) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(status), "\n"+field+":")
	f := strings.Fields(rest)
	if len(f) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(f[0])
	return n
}

func residentOf(pid int) int { return statusOf(pid, "VmRSS") }
func parentOf(pid int) int   { return statusOf(pid, "PPid") }

// daemonTrip measures launches through the daemon, one after the other.
func (b *bench) daemonTrip() error {
	d, err := b.startDaemon()
	if err != nil {
		return err
	}
	defer d.stop()
	both, guard, err := d.memory()
	if err != nil {
		return err
	}
	limit("idle daemon, both processes", both, "KiB", 25<<10)
	fmt.Printf("%-34s %8d KiB\n", "  and its guard", guard)
	ws := b.dir("daemon-ws")
	p, err := d.dial(ws)
	if err != nil {
		return err
	}
	defer p.conn.Close()
	med, err := rounds(b.n, p.run, b.spawn(ws))
	if err != nil {
		return err
	}
	say("round trip through the daemon", med[0], med[1], "os/exec", 1.6)
	return nil
}

// spawn is the peer: the same command by os/exec.
func (b *bench) spawn(ws string) func() error {
	return func() error {
		c := exec.Command("/bin/true")
		c.Dir, c.Env, c.Stdin, c.Stdout, c.Stderr = ws, []string{}, b.null, b.null, b.null
		return c.Run()
	}
}

// daemonClients measures launches of many clients at once.
func (b *bench) daemonClients() error {
	d, err := b.startDaemon()
	if err != nil {
		return err
	}
	defer d.stop()
	ws := b.dir("daemon-ws")
	const clients = 32
	peers := make([]func() error, clients)
	bare := make([]func() error, clients)
	for i := range clients {
		// One user has so many connections at most, and one may be closing still.
		var p *peer
		for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
			if p, err = d.dial(ws); err == nil || time.Now().After(end) {
				break
			}
		}
		if err != nil {
			return err
		}
		defer p.conn.Close()
		peers[i], bare[i] = p.run, b.spawn(ws)
	}
	ours, theirs := time.Duration(0), time.Duration(0)
	monitor, front := d.processes()
	used := [2]time.Duration{processorTime(monitor), processorTime(front)}
	for range 4 {
		for _, side := range []struct {
			run []func() error
			sum *time.Duration
		}{{peers, &ours}, {bare, &theirs}} {
			took, err := together(side.run, max(1, b.n/20))
			if err != nil {
				return err
			}
			*side.sum += took
		}
	}
	ratio := float64(theirs) / float64(ours)
	verdict := "within"
	if ratio < 0.8 {
		verdict = "UNDER"
	}
	each := time.Duration(clients * 4 * max(1, b.n/20))
	fmt.Printf("%-34s %8s  %-40s %8s  throughput %.2f  (%s 0.80)\n", "32 clients at once, a launch", ours/each, "os/exec by 32 goroutines", theirs/each, ratio, verdict)
	// On a busy machine the clock tells how busy it is; this tells the cost.
	fmt.Printf("%-34s %8s of a processor in the monitor, %s in the front\n", "  a launch takes", (processorTime(monitor)-used[0])/each, (processorTime(front)-used[1])/each)
	return nil
}

// together runs each of fs n times, all side by side.
func together(fs []func() error, n int) (time.Duration, error) {
	var wg sync.WaitGroup
	errs := make([]error, len(fs))
	began := time.Now()
	for i, f := range fs {
		wg.Go(func() {
			for range n {
				if errs[i] = f(); errs[i] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(began), errors.Join(errs...)
}

// daemonLive measures what 500 workers that run cost the daemon, with two streams
// each, or as many as the limit of open files has room for.
func (b *bench) daemonLive() error {
	d, err := b.startDaemon()
	if err != nil {
		return err
	}
	defer d.stop()
	before, _, err := d.memory()
	monitor := residentOf(d.cmd.Process.Pid)
	if err != nil {
		return err
	}
	const workers, each = 500, 50
	live := 0
	for full := false; live < workers && !full; {
		p, err := d.dial(b.dir("daemon-ws"))
		if err != nil {
			return err
		}
		defer p.conn.Close()
		for range each {
			if err := p.launch(&protocol.Stdio{Stdout: "stream", Stderr: "stream"}, "/bin/sleep", "1000"); err != nil {
				return err
			}
		}
		for heard := 0; heard < each; heard++ {
			m, err := p.hear()
			var e *protocol.Error
			switch {
			case errors.As(err, &e) && e.Code == protocol.Overloaded && live > 0:
				full = true
				continue
			case err != nil:
				return err
			}
			if _, ok := m.(*protocol.Started); ok {
				live++
			}
		}
	}
	after, _, err := d.memory()
	if err != nil {
		return err
	}
	files, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
	limit(fmt.Sprintf("each of %d live workers", live), (after-before)/live, "KiB", 64)
	fmt.Printf("%-34s %8d KiB of them in the monitor, which has %d threads and %d descriptors\n", "",
		(residentOf(d.cmd.Process.Pid)-monitor)/live, statusOf(d.cmd.Process.Pid, "Threads"), len(files))
	return nil
}

func limit(name string, value int, unit string, most int) {
	verdict := "within"
	if value > most {
		verdict = "OVER"
	}
	fmt.Printf("%-34s %8d %s  (%s %d)\n", name, value, unit, verdict, most)
}
