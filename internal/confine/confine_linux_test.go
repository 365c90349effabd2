package confine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/seccomp"
	"sandboxd/internal/sys"
)

// other is who the front becomes where the tests run as root.
var other = IDs{UID: 61234, GID: 61235}

func isRoot() bool { return os.Geteuid() == 0 }

// foreign tells whether this binary has threads that Go does not know (the race
// detector's has).
func foreign() bool {
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_GETPID, 0, 0, 0)
	return errno == syscall.ENOTSUP
}

// hostABI is the kernel's Landlock ABI.
func hostABI(t *testing.T) int {
	t.Helper()
	abi, _, why := probe(0)
	if abi == 0 {
		t.Skip("Landlock is not available: " + why)
	}
	return abi
}

// outcome is what became of one front.
type outcome struct {
	told
	outside []Thread // as Threads read it, at the end
	root    bool     // whether /proc/PID belongs to root, as it does if it is undumpable
}

// options are those of the coming daemon, for the user that tests run as.
func options(t *testing.T, store bool) Options {
	t.Helper()
	o := Options{Files: 512, Keep: []int{3}}
	if isRoot() {
		o.User = &other
	}
	if store {
		dir, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		o.Store, o.FileSize = filepath.Join(dir, "store"), 1<<20
		if err := os.Mkdir(o.Store, 0o700); err != nil {
			t.Fatal(err)
		}
		if isRoot() {
			if err := errors.Join(os.Chown(o.Store, other.UID, other.GID), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return o
}

// run starts a front and serves it until it has told.
func run(t *testing.T, j job) outcome {
	t.Helper()
	closeAfter := func(l net.Listener, err error) net.Listener {
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	dir := t.TempDir()
	j.Outside = filepath.Join(dir, "outside")
	if err := errors.Join(os.Mkdir(j.Outside, 0o777), os.Chmod(j.Outside, 0o777), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	j.Path, j.Abstract = filepath.Join(dir, "sock"), "@confine-test-"+fmt.Sprint(os.Getpid(), time.Now().UnixNano())
	j.TCP = closeAfter(net.Listen("tcp", "127.0.0.1:0")).Addr().(*net.TCPAddr).Port
	closeAfter(net.Listen("unix", j.Path))
	closeAfter(net.Listen("unix", j.Abstract))
	if err := os.Chmod(j.Path, 0o777); err != nil {
		t.Fatal(err)
	}

	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "front")
	ours, err := handed(os.NewFile(uintptr(pair[0]), "monitor"))
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = &stdout, &stderr, []*os.File{theirs}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	limit := time.AfterFunc(120*time.Second, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()

	var o outcome
	clients := &clients{t: t}
	if j.Load > 0 {
		clients.hand(ours.(*net.UnixConn))
	}
	word := make([]byte, 4)
	for {
		if _, err := io.ReadFull(ours, word); err != nil {
			break // it went without a word: the exit status tells
		}
		if string(word) == "half" {
			clients.finish()
			continue
		}
		if o.outside, err = Threads(cmd.Process.Pid); err != nil {
			t.Error(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid), &st); err != nil {
			t.Error(err)
		}
		o.root = st.Uid == 0
		ours.(*net.UnixConn).CloseWrite()
	}
	ours.Close()
	clients.finish()
	err = cmd.Wait()
	if stderr.Len() > 0 || err != nil {
		t.Fatalf("the front: %v\n%.6000s", err, &stderr)
	}
	if err := json.Unmarshal(stdout.Bytes(), &o.told); err != nil {
		t.Fatalf("the front told %q: %v", &stdout, err)
	}
	return o
}

// clients are the other ends of the sockets that are handed over.
type clients struct {
	t     *testing.T
	ends  []net.Conn
	work  sync.WaitGroup
	stop  chan struct{}
	once  sync.Once
	sent  int64
	count sync.Mutex
}

// hand sends the front one end of each of some pairs, unix and TCP, and works with the
// other ends.
func (c *clients) hand(to *net.UnixConn) {
	c.t.Helper()
	c.stop = make(chan struct{})
	send := func(f *os.File) {
		c.t.Helper()
		_, _, err := to.WriteMsgUnix([]byte{1}, unix.UnixRights(int(f.Fd())), nil)
		if err != nil {
			c.t.Fatal(err)
		}
		f.Close()
	}
	for range handedOver / 2 {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			c.t.Fatal(err)
		}
		end, err := handed(os.NewFile(uintptr(pair[0]), "ours"))
		if err != nil {
			c.t.Fatal(err)
		}
		send(os.NewFile(uintptr(pair[1]), "theirs"))
		c.ends = append(c.ends, end)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	defer l.Close()
	for range handedOver / 2 {
		end, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			c.t.Fatal(err)
		}
		accepted, err := l.Accept()
		if err != nil {
			c.t.Fatal(err)
		}
		f, err := accepted.(*net.TCPConn).File()
		if err != nil {
			c.t.Fatal(err)
		}
		accepted.Close()
		send(f)
		c.ends = append(c.ends, end)
	}
	if _, err := to.Write([]byte{0}); err != nil {
		c.t.Fatal(err)
	}
	for i, end := range c.ends {
		c.work.Go(func() { c.speak(byte(i), end) })
	}
}

// speak sends and expects the same back.
func (c *clients) speak(id byte, end net.Conn) {
	defer end.Close()
	want, got := bytes.Repeat([]byte{id, 'e', 'c', 'h', 'o'}, 1000), make([]byte, 5000)
	for {
		select {
		case <-c.stop:
			return
		default:
		}
		if _, err := end.Write(want); err != nil {
			c.t.Errorf("client %d: %v", id, err)
			return
		}
		if _, err := io.ReadFull(end, got); err != nil || !bytes.Equal(got, want) {
			c.t.Errorf("client %d: %v, or other bytes", id, err)
			return
		}
		c.count.Lock()
		c.sent += int64(len(want))
		c.count.Unlock()
	}
}

func (c *clients) finish() {
	if c.stop == nil {
		return
	}
	c.once.Do(func() { close(c.stop) })
	c.work.Wait()
}

// expect is what a front's outcome is held to.
type expect struct {
	gaps     []string
	filter   string
	landlock int // the ABI; 0: none
	// alone: without a filter, so that only what Landlock refuses is expected.
	alone bool
	// open: files are not confined at all.
	open bool
}

// complaints are what is wrong with an outcome; none if it is confined as expected.
func complaints(o outcome, j job, want expect) (all []string) {
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if o.SelfErr != "" {
		add("Self: %s", o.SelfErr)
		return all
	}
	for name, err := range o.Control {
		add("control: %s is refused before: %s", name, err)
	}
	for _, tr := range trials() {
		refused := !want.alone || tr.landlock > 0 && tr.landlock <= want.landlock
		if want.open && tr.landlock > 0 {
			refused = tr.landlock > 1 || tr.name == "run a program"
		}
		through := o.Through[tr.name]
		if refused && len(through) > 0 {
			add("%s was not refused: %q", tr.name, through)
		}
		if !refused && !tr.mode && len(through) == 0 {
			add("%s was refused, by what?", tr.name)
		}
	}
	if o.Before != 8 || o.During == 0 || o.Later < 8 || o.Attempts != (o.Before+o.During+o.Later)*len(trials()) {
		add("%d, %d and %d threads tried, %d times", o.Before, o.During, o.Later, o.Attempts)
	}
	all = append(all, o.Wrong...)
	var gaps []string
	for _, g := range o.Posture.Gaps {
		gaps = append(gaps, g.What)
	}
	if !slices.Equal(gaps, want.gaps) {
		add("gaps %q, want %q", o.Posture.Gaps, want.gaps)
	}
	if o.Posture.Filter.Name != want.filter || o.Posture.Landlock.ABI != want.landlock {
		add("filter %q and Landlock %d, want %q and %d", o.Posture.Filter.Name, o.Posture.Landlock.ABI, want.filter, want.landlock)
	}
	if !o.root && !want.alone { // nothing keeps them from becoming dumpable again
		add("the process is dumpable: its /proc belongs to its user")
	}
	if len(o.outside) < 2 || len(o.Posture.Threads) < 10 {
		add("%d threads were read from outside, %d from inside", len(o.outside), len(o.Posture.Threads))
	}
	// The product's own judgement must not be milder than this one.
	bounding := j.Options.User != nil && !foreign()
	if err := CheckThreads(o.outside, Expect{User: j.Options.User, Filter: want.filter != "", Bounding: bounding, Capabilities: true}); err != nil {
		add("CheckThreads: %v", err)
	}
	for _, th := range slices.Concat(o.outside, o.Posture.Threads) {
		all = append(all, threadComplaints(th, j, want)...)
	}
	refused := 0
	for _, k := range o.Posture.Canaries {
		if k.Refused {
			refused++
		}
	}
	tried := 0
	if want.landlock > 0 {
		tried += 2 * len(filesOnly)
	}
	if want.filter != "" {
		tried += 2 * len(everything)
	}
	allowed := 0
	if want.open {
		allowed = 2 // "open /"
	}
	if len(o.Posture.Canaries) != tried || refused != tried-allowed {
		add("canaries: %+v, want %d, of which %d refused", o.Posture.Canaries, tried, tried-allowed)
	}
	return all
}

func threadComplaints(th Thread, j job, want expect) (all []string) {
	add := func(format string, args ...any) {
		all = append(all, fmt.Sprintf("thread %d: "+format, append([]any{th.TID}, args...)...))
	}
	if !th.NoNewPrivs {
		add("no_new_privs is not set")
	}
	mode := 0
	if want.filter != "" {
		mode = 2
	}
	around, err := Threads(os.Getpid()) // filters around the tests count too
	if err != nil {
		add("%v", err)
	}
	if len(around) > 0 && around[0].Seccomp == 0 && (th.Seccomp != mode || th.Filters != mode/2) {
		add("seccomp mode %d, %d filters", th.Seccomp, th.Filters)
	}
	if th.CapEff|th.CapPrm|th.CapInh|th.CapAmb != 0 {
		add("capabilities %x %x %x %x", th.CapEff, th.CapPrm, th.CapInh, th.CapAmb)
	}
	if u := j.Options.User; u != nil {
		if th.CapBnd != 0 && !foreign() {
			add("bounding set %x", th.CapBnd)
		}
		if th.UID != [4]int{u.UID, u.UID, u.UID, u.UID} || th.GID != [4]int{u.GID, u.GID, u.GID, u.GID} || len(th.Groups) != 0 {
			add("user %v, group %v, groups %v", th.UID, th.GID, th.Groups)
		}
	}
	return all
}

// full is what is expected of this kernel and binary.
func full(store bool) expect {
	want := expect{filter: "front"}
	if store {
		want.filter = "front-store"
	}
	abi, _, _ := probe(0)
	if abi == 0 || foreign() && abi < tsyncABI {
		want.gaps, want.open = []string{GapFiles}, store
		return want
	}
	want.landlock = abi
	return want
}

func check(t *testing.T, o outcome, j job, want expect) {
	t.Helper()
	for _, c := range complaints(o, j, want) {
		t.Error(c)
	}
}

// TestSelf: with and without a store, every thread, of before and later ones, is
// refused everything that works before.
func TestSelf(t *testing.T) {
	for _, store := range []bool{false, true} {
		t.Run(fmt.Sprintf("store=%v", store), func(t *testing.T) {
			j := job{Options: options(t, store)}
			want := full(store)
			j.Options.Require, j.Open = len(want.gaps) == 0, want.open
			o := run(t, j)
			check(t, o, j, want)
			text, _ := json.Marshal(o.Posture)
			t.Logf("%s", text)
		})
	}
}

// TestUnderLoad: the runtime lives through the confinement and works in it: memory,
// collections, preemption, timers, GOMAXPROCS, sockets that are handed over; and every
// thread that it makes is refused everything.
func TestUnderLoad(t *testing.T) {
	for _, store := range []bool{false, true} {
		t.Run(fmt.Sprintf("store=%v", store), func(t *testing.T) {
			want := full(store)
			j := job{Options: options(t, store), Load: 2 * time.Second, Open: want.open}
			o := run(t, j)
			check(t, o, j, want)
			if o.Echo <= handedOver*copyAfter || o.Later < 20 {
				t.Errorf("only %d bytes were echoed, and %d threads made", o.Echo, o.Later)
			}
			t.Logf("%d bytes echoed; threads: %d during, %d later; %d attempts", o.Echo, o.During, o.Later, o.Attempts)
		})
	}
}

// TestLandlockAlone leaves the filter out: what Landlock is to refuse it refuses by
// itself, to every thread, at each ABI up to the kernel's, as older kernels would.
func TestLandlockAlone(t *testing.T) {
	if foreign() {
		t.Skip("needs a binary without cgo, or Landlock ABI 8")
	}
	host := hostABI(t)
	for abi := 1; abi <= host; abi++ {
		t.Run(fmt.Sprint(abi), func(t *testing.T) {
			j := job{Options: options(t, false), Omit: []string{"filter", "read-back"}}
			j.Options.MaxABI = abi
			if abi == host || abi == tsyncABI-1 { // the last of each way
				j.Load = 300 * time.Millisecond
			}
			o := run(t, j)
			// The read-back, which would find the filter missing, was left out.
			if len(o.Posture.Threads) != 0 {
				t.Errorf("%d threads were read", len(o.Posture.Threads))
			}
			o.Posture.Threads = slices.Repeat(o.outside, 10)
			check(t, o, j, expect{landlock: abi, alone: true})
			if got := o.Posture.Landlock.Threads; (got == "shared") != (abi >= tsyncABI) {
				t.Errorf("threads %q", got)
			}
		})
	}
}

// TestFilterAlone is a kernel without Landlock: a gap, loud, and with Require an
// error. Without a store nothing can be opened even so.
func TestFilterAlone(t *testing.T) {
	for _, store := range []bool{false, true} {
		t.Run(fmt.Sprintf("store=%v", store), func(t *testing.T) {
			j := job{Options: options(t, store), Open: true}
			j.Options.MaxABI = -1
			want := expect{filter: "front", gaps: []string{GapFiles}, open: store}
			if store {
				want.filter = "front-store"
			}
			check(t, run(t, j), j, want)
			j.Options.Require = true
			if o := run(t, j); !strings.Contains(o.SelfErr, "files: Landlock is not to be used") {
				t.Errorf("Self: %q", o.SelfErr)
			}
		})
	}
}

// TestRootStays: a front that stays root is a gap.
func TestRootStays(t *testing.T) {
	if !isRoot() {
		t.Skip("is about root")
	}
	j := job{Options: Options{Keep: []int{3}}}
	o := run(t, j)
	want := full(false)
	want.gaps = append([]string{GapRoot}, want.gaps...)
	if foreign() {
		// Root's capabilities stay on all threads but one: a gap, and red in the rest.
		if gaps := o.Posture.Gaps; len(gaps) == 0 || gaps[len(gaps)-1].What != GapCapabilities {
			t.Errorf("gaps %q", gaps)
		}
		return
	}
	check(t, o, j, want)
}

// TestDescriptors: one that nobody named is a gap.
func TestDescriptors(t *testing.T) {
	j := job{Options: options(t, false)}
	j.Options.Keep = nil
	o := run(t, j)
	gaps := o.Posture.Gaps
	if len(gaps) == 0 || gaps[0].What != GapDescriptor || !strings.HasPrefix(gaps[0].Why, "descriptor 3 is open: socket:") {
		t.Errorf("gaps %q", gaps)
	}
	j.Options.Require = true
	if o := run(t, j); !strings.Contains(o.SelfErr, "descriptor 3 is open") {
		t.Errorf("Self: %q", o.SelfErr)
	}
}

// TestRefuses: what cannot be meant.
func TestRefuses(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(dir, link)); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]Options{
		"is not an absolute path below /":     {Store: "store"},
		"the store \"/\" is not":              {Store: "/"},
		"is not a directory":                  {Store: file},
		"too many levels of symbolic links":   {Store: link},
		"no such file":                        {Store: filepath.Join(dir, "none")},
		"are not somebody else than root":     {User: &IDs{UID: 0, GID: 5}},
		"user 5 and group 0 are not somebody": {User: &IDs{UID: 5, GID: 0}},
	} {
		o.Keep = []int{3}
		if got := run(t, job{Options: o}).SelfErr; !strings.Contains(got, want) {
			t.Errorf("%+v: %q, want %q", o, got, want)
		}
	}
	if isRoot() {
		o := options(t, true)
		if err := os.Chown(o.Store, 0, 0); err != nil {
			t.Fatal(err)
		}
		if got := run(t, job{Options: o}).SelfErr; !foreign() && !strings.Contains(got, "the store cannot be used") {
			t.Errorf("a store of another user: %q", got)
		}
	} else if got := run(t, job{Options: Options{User: &other, Keep: []int{3}}}).SelfErr; !strings.Contains(got, "operation not permitted") {
		t.Errorf("an ordinary user becomes another one: %q", got)
	}
}

// TestMutations leaves steps out, or confines one thread only. Self must notice by
// itself, and where it is made blind to it these tests must turn red.
func TestMutations(t *testing.T) {
	if foreign() {
		t.Skip("needs a binary without cgo, or Landlock ABI 8")
	}
	hostABI(t)
	const yes, no, maybe = 1, 2, 3
	for _, m := range []struct {
		omit, one string
		root      bool // needs root
		self      int  // whether Self notices
		tests     bool // whether the tests notice without it
	}{
		{"bounding", "", true, yes, true},
		{"user", "", true, yes, true},
		{"capabilities", "", true, yes, true},
		{"no_new_privs", "", false, yes, true},
		// A change of user makes a process undumpable all the same.
		{"undumpable", "", false, yes, !isRoot()},
		{"landlock", "", false, yes, true},
		{"filter", "", false, yes, true},
		// The fresh thread may be the child of the confined one.
		{"", "landlock", false, maybe, true},
		{"", "filter", false, yes, true},
		{"statuses", "", false, yes, false},
		{"read-back", "", false, no, true},
		{"canaries", "", false, no, true},
		{"place", "", false, no, true},
		{"limits", "", false, no, true},
	} {
		name := m.omit
		if m.one != "" {
			name = m.one + " on one thread"
		}
		t.Run(name, func(t *testing.T) {
			if m.root && !isRoot() {
				t.Skip("needs root")
			}
			j := job{Options: options(t, true), Omit: []string{m.omit}, One: m.one}
			want := full(true)
			if m.omit == "capabilities" { // which the change of user would drop
				j.Options.User, j.Options.Store = nil, ""
				want = full(false)
				want.gaps = []string{GapRoot}
			}
			o := run(t, j)
			if m.self != maybe && (o.SelfErr != "") != (m.self == yes) {
				t.Errorf("Self: %q", o.SelfErr)
			}
			blind := o
			if m.omit != "read-back" && m.omit != "canaries" {
				j.Omit = append(j.Omit, "read-back", "canaries", "store")
				blind = run(t, j)
				// What Self says of itself must not be what is noticed.
				p := &blind.Posture
				p.Threads, p.Canaries = slices.Repeat(blind.outside, 10), slices.Repeat([]Canary{{Refused: true}}, 2*len(filesOnly)+2*len(everything))
				p.Landlock.ABI, p.Filter.Name = want.landlock, want.filter
			}
			all := complaints(blind, j, want)
			if (len(all) > 0) != m.tests {
				t.Errorf("the tests noticed: %q", all)
			}
			t.Logf("Self: %.200q; tests: %.200q", o.SelfErr, all)
		})
	}
}

// TestTwice: the second time is refused, and harms nothing.
func TestTwice(t *testing.T) {
	defer done.Store(done.Swap(true))
	if _, err := Self(Options{}); err == nil {
		t.Error("it ran twice")
	}
}

// TestSiblingSignals: below ABI 8, signals are scoped only where threads of one
// process may signal each other all the same.
func TestSiblingSignals(t *testing.T) {
	const scopeSignal = 2
	for _, c := range []struct {
		abi, errata int
		want        bool
	}{{5, 0, false}, {6, 0, false}, {6, 1, false}, {7, 0, false}, {6, 2, true}, {7, 3, true}, {8, 0, true}, {11, 0, true}} {
		if got := handledAt(c.abi, c.errata).Scoped&scopeSignal != 0; got != c.want {
			t.Errorf("ABI %d, errata %d: %v", c.abi, c.errata, got)
		}
	}
}

// TestHandled: this kernel takes everything that its ABI is said to have, and not what
// the next is said to add.
func TestHandled(t *testing.T) {
	abi := hostABI(t)
	for a := 1; a <= maxABI; a++ {
		fd, err := sys.CreateRuleset(handledAt(a, erratumThreads), attrSize(a))
		if err == nil {
			_ = unix.Close(fd)
		}
		same := handledAt(a, erratumThreads) == handledAt(abi, erratumThreads)
		if (err == nil) != (a <= abi || same) {
			t.Errorf("ABI %d on a kernel of %d: %v", a, abi, err)
		}
	}
}

func TestParseStatus(t *testing.T) {
	text, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		t.Fatal(err)
	}
	th, err := parseStatus(string(text))
	if err != nil || th.TID == 0 || th.UID[1] != os.Geteuid() || th.CapBnd == 0 {
		t.Errorf("%+v, %v", th, err)
	}
	for _, line := range []string{"Pid", "NoNewPrivs", "Seccomp", "Uid", "Gid", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		for _, bad := range []string{"", line + ":\tx\n", line + ":\t1 2 z\n"} {
			var lines []string
			for l := range strings.Lines(string(text)) {
				if !strings.HasPrefix(l, line+":") {
					lines = append(lines, l)
				}
			}
			if _, err := parseStatus(strings.Join(lines, "") + bad); err == nil {
				t.Errorf("line %s: %q was understood", line, bad)
			}
		}
	}
}

func TestThreads(t *testing.T) {
	all, err := Threads(os.Getpid())
	if err != nil || len(all) < 2 {
		t.Errorf("%d threads: %v", len(all), err)
	}
	if _, err := Threads(1 << 30); err == nil {
		t.Error("there is no such process")
	}
}

// TestFilterFits: the filters exist for this machine, and the kernel takes them with
// what pins them.
func TestFilterFits(t *testing.T) {
	for _, f := range []seccomp.Front{seccomp.FrontBare, seccomp.FrontStore} {
		p, err := seccomp.Load(runtime.GOARCH, seccomp.Variant{Front: f})
		if err != nil {
			t.Fatal(err)
		}
		pinned := seccomp.Pin(runtime.GOARCH, p, os.Getpid())
		t.Logf("%s: %d instructions, %d pinned", f, len(p), len(pinned))
		if len(pinned) > seccomp.MaxInsns/4 {
			t.Errorf("%s has %d instructions", f, len(pinned))
		}
	}
}
