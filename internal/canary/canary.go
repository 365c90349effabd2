// Package canary tries, through the real launch path, what a sandbox must
// refuse and what it must allow, and tells whether the enforcement report is
// true on this host. Each refused attempt has a control: the same attempt by
// the same program outside the sandbox must succeed, or the check means
// nothing and says so.
package canary

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"sandboxd/backend"
	"sandboxd/policy"
)

// Check is one attempt and what came of it.
type Check struct {
	Name string `json:"name"`
	// Effect is what the report claims about the attempt.
	Effect policy.Effect `json:"effect"`
	// Want is "refused" or "allowed"; Got is one of them or "error".
	Want string `json:"want"`
	Got  string `json:"got"`
	// OK tells that the check holds.
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
	// Note is what a person should know of a check that holds.
	Note string `json:"note,omitempty"`
}

// attempt is one thing to try. Its arguments are paths and addresses of the
// fixture.
type attempt struct {
	name   string
	effect policy.Effect
	op     string
	arg    string
	want   string
	// touched tells, after the attempt, whether it had its effect after all,
	// whatever the program said.
	touched func() bool
}

// ownUnixOp connects to a unix socket of the worker's own.
const ownUnixOp = "ownunix"

// fixture is the stage: a workspace, an outside, and listeners that notice.
type fixture struct {
	root, workspace, outside, secret string
	tcp                              net.Listener
	udp                              net.PacketConn
	unix                             net.Listener
	seen                             chan string
}

func newFixture() (*fixture, error) {
	root, err := os.MkdirTemp("", "sbx-doctor-")
	if err != nil {
		return nil, err
	}
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return nil, err
	}
	f := &fixture{
		root: root, workspace: filepath.Join(root, "workspace"), outside: filepath.Join(root, "outside"),
		secret: filepath.Join(root, "outside", "secret"), seen: make(chan string, 64),
	}
	for _, dir := range []string{f.workspace, f.outside} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return f, err
		}
	}
	if err := os.WriteFile(f.secret, []byte("planted"), 0o600); err != nil {
		return f, err
	}
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	if f.tcp, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
		return f, err
	}
	if f.udp, err = net.ListenPacket("udp4", "127.0.0.1:0"); err != nil {
		return f, err
	}
	if f.unix, err = net.Listen("unix", filepath.Join(f.outside, "s")); err != nil {
		return f, err
	}
	go f.accept("tcp", f.tcp)
	go f.accept("unix", f.unix)
	go func() {
		buf := make([]byte, 16)
		for {
			if _, _, err := f.udp.ReadFrom(buf); err != nil {
				return
			}
			f.note("udp")
		}
	}()
	return f, nil
}

func (f *fixture) accept(name string, l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_ = c.Close()
		f.note(name)
	}
}

func (f *fixture) note(name string) {
	select {
	case f.seen <- name:
	default:
	}
}

// heard tells whether a listener noticed something, and forgets it.
func (f *fixture) heard(name string) bool {
	deadline := time.After(150 * time.Millisecond)
	got := false
	for {
		select {
		case n := <-f.seen:
			got = got || n == name
			if got {
				return true
			}
		case <-deadline:
			return got
		}
	}
}

func (f *fixture) close() error {
	for _, c := range []io.Closer{f.tcp, f.udp, f.unix} {
		if c != nil {
			_ = c.Close()
		}
	}
	return os.RemoveAll(f.root)
}

func (f *fixture) attempts() []attempt {
	exists := func(path string) func() bool {
		return func() bool { _, err := os.Lstat(path); return err == nil }
	}
	heard := func(name string) func() bool { return func() bool { return f.heard(name) } }
	out := filepath.Join(f.outside, "written")
	return []attempt{
		{"write outside the workspace", policy.FSWrite, "write", out, "refused", exists(out)},
		{"read a file outside the grants", policy.FSRead, "read", f.secret, "refused", nil},
		{"truncate a file outside the grants", policy.FSTruncate, "truncate", f.secret, "refused", func() bool {
			st, err := os.Stat(f.secret)
			return err != nil || st.Size() == 0
		}},
		{"connect by TCP", policy.NetTCPConnect, "tcp", f.tcp.Addr().String(), "refused", heard("tcp")},
		{"send by UDP", policy.NetUDP, "udp", f.udp.LocalAddr().String(), "refused", heard("udp")},
		{"connect to a unix socket of the host", policy.NetUnixPath, "unix", f.unix.Addr().String(), "refused", heard("unix")},
		{"write in the workspace", policy.FSWrite, "write", filepath.Join(f.workspace, "w"), "allowed", nil},
		{"read in the workspace", policy.FSRead, "read", filepath.Join(f.workspace, "w"), "allowed", nil},
		{"write to /dev/null", policy.FSWrite, "write", "/dev/null", "allowed", nil},
		{"write in the private temp", policy.FSWrite, "writetemp", "t", "allowed", nil},
		{"connect a unix socket of its own", policy.NetUnixPath, ownUnixOp, filepath.Join(f.workspace, "own"), "allowed", nil},
	}
}

// Result is what the doctor found.
type Result struct {
	Backend string        `json:"backend"`
	Level   backend.Level `json:"level,omitempty"`
	Checks  []Check       `json:"checks"`
}

// OK tells whether every check holds.
func (r Result) OK() bool {
	for _, c := range r.Checks {
		if !c.OK {
			return false
		}
	}
	return len(r.Checks) > 0
}

// Run tries everything under one backend, with the policy that resolve makes
// for a workspace. This program itself performs the attempts.
func Run(b backend.Backend, resolve func(workspace string) (policy.Spec, error)) (res Result, err error) {
	res.Backend = b.Name()
	f, err := newFixture()
	if f != nil {
		defer func() { err = errors.Join(err, f.close()) }()
	}
	if err != nil {
		return res, fmt.Errorf("preparing the canaries: %w", err)
	}
	self, err := selfPath()
	if err != nil {
		return res, err
	}
	spec, err := resolve(f.workspace)
	if err != nil {
		return res, err
	}
	spec.Grants = append(spec.Grants, policy.Grant{
		Path: policy.Raw(self), Kind: policy.File, Access: policy.Read | policy.Exec, Reason: "performs the attempts", Source: "doctor",
	})
	spec.AllowGap = policy.Promise() // what is not claimed is not tried, see check
	p, err := policy.New(spec)
	if err != nil {
		return res, err
	}
	plan, err := b.Plan(p)
	if err != nil {
		return res, err
	}
	prepared, err := plan.Prepare()
	if err != nil {
		return res, err
	}
	defer prepared.Close()
	res.Level = plan.Enforcement().Level(p)
	for _, a := range f.attempts() {
		lacks := ""
		if l, ok := plan.(lacking); ok && a.op == ownUnixOp {
			lacks = l.LacksOwnSockets()
		}
		res.Checks = append(res.Checks, f.check(a, lacks, self, prepared, plan.Enforcement().State(a.effect)))
	}
	return res, nil
}

// lacking is a plan under which something does not work that does elsewhere.
type lacking interface {
	// LacksOwnSockets says why a worker cannot connect to its own unix
	// sockets; "" if it can.
	LacksOwnSockets() string
}

func selfPath() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(exe)
}

// check makes one attempt. What lacks is why it cannot work here, though it does
// elsewhere.
func (f *fixture) check(a attempt, lacks, self string, prepared backend.Prepared, claim backend.State) Check {
	if lacks != "" {
		a.want = "refused"
	}
	c := Check{Name: a.name, Effect: a.effect, Want: a.want}
	if a.want == "refused" && claim.Status != backend.Enforced {
		c.OK, c.Got, c.Detail = true, "not claimed", fmt.Sprintf("the report says %s", claim.Status)
		return c
	}
	c.Got, c.Detail = f.inside(a, self, prepared)
	silent := a.op == "udp" && c.Got == "allowed" // a datagram is sent, whoever is there
	switch {
	case a.want == "refused" && a.touched != nil && a.touched():
		c.Got, c.Detail = "allowed", "it had its effect"
	case silent:
		c.Got, c.Detail = "refused", "what was sent reached nobody"
	}
	c.OK = c.Got == a.want
	if c.OK && lacks != "" {
		c.Note = lacks
		return c // the control is a kernel with a listener
	}
	if c.OK && a.want == "refused" {
		if got, detail := f.outsideControl(a, self); got != "allowed" {
			c.OK, c.Detail = false, "the control outside the sandbox failed too, so this proves nothing: "+detail
		} else if silent && !a.touched() {
			c.OK, c.Detail = false, "the control outside the sandbox reached nobody either, so this proves nothing"
		}
	}
	return c
}

// verdict is what the program that made the attempt writes.
type verdict struct {
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

func (v verdict) words() (string, string) {
	if v.OK {
		return "allowed", ""
	}
	return "refused", v.Error
}

func (f *fixture) inside(a attempt, self string, prepared backend.Prepared) (got, detail string) {
	pr, pw, err := os.Pipe()
	if err != nil {
		return "error", err.Error()
	}
	defer pr.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		_ = pw.Close()
		return "error", err.Error()
	}
	defer null.Close()
	dir, err := os.Open(f.workspace)
	if err != nil {
		_ = pw.Close()
		return "error", err.Error()
	}
	defer dir.Close()
	w, err := prepared.Start(backend.Command{
		Path: self, Argv: []string{"sbx", Command, a.op, a.arg}, Dir: dir, Stdin: null, Stdout: pw, Stderr: null, OwnTree: true,
	})
	_ = pw.Close()
	if err != nil {
		return "error", err.Error()
	}
	out, readErr := io.ReadAll(io.LimitReader(pr, 1<<16))
	r := w.Wait()
	var v verdict
	if err := json.Unmarshal(out, &v); err != nil || readErr != nil {
		return "error", fmt.Sprintf("no verdict (outcome %s, status %d)", r.Outcome.Kind, r.Outcome.ExitStatus())
	}
	return v.words()
}

func (f *fixture) outsideControl(a attempt, self string) (got, detail string) {
	out, err := exec.Command(self, Command, a.op, a.arg).Output()
	if err != nil {
		return "error", err.Error()
	}
	var v verdict
	if err := json.Unmarshal(out, &v); err != nil {
		return "error", err.Error()
	}
	return v.words()
}

// Command is the hidden subcommand that performs one attempt.
const Command = "__canary"

// Attempt performs one attempt and writes its verdict.
func Attempt(op, arg string, w io.Writer) error {
	var v verdict
	f, ok := ops[op]
	if !ok {
		return fmt.Errorf("unknown attempt %q", op)
	}
	if err := f(arg); err != nil {
		v.Error = err.Error()
	} else {
		v.OK = true
	}
	return json.NewEncoder(w).Encode(v)
}

var ops = map[string]func(string) error{
	"write":     func(p string) error { return writeFile(p) },
	"writetemp": func(p string) error { return writeFile(filepath.Join(os.Getenv("TMPDIR"), p)) },
	"read":      func(p string) error { _, err := os.ReadFile(p); return err },
	"truncate":  func(p string) error { return os.Truncate(p, 0) },
	"tcp":       func(a string) error { return dial("tcp", a) },
	"udp":       func(a string) error { return dial("udp", a) },
	"unix":      func(a string) error { return dial("unix", a) },
	ownUnixOp:   ownUnix,
}

func writeFile(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString("canary")
	return errors.Join(err, f.Close())
}

func dial(network, address string) error {
	d := net.Dialer{Timeout: 2 * time.Second}
	d.SetMultipathTCP(false)
	c, err := d.Dial(network, address)
	if err != nil {
		return err
	}
	if network == "udp" { // a datagram goes out only when it is sent
		_, err = c.Write([]byte("canary"))
	}
	return errors.Join(err, c.Close())
}

func ownUnix(path string) error {
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = c.Close()
		}
		done <- err
	}()
	if err := dial("unix", path); err != nil {
		return err
	}
	return <-done
}
