package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd/protocol"
)

// unit reads a file of systemd's: "Section/Name" to values. Each directive that is not
// plain must have its reason above it.
func unit(t *testing.T, path string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	got := map[string][]string{}
	section, before := "", ""
	for i, line := range strings.Split(string(text), "\n") {
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			section = strings.Trim(line, "[]")
		default:
			name, value, ok := strings.Cut(line, "=")
			if !ok || section == "" || value == "" || strings.TrimSpace(line) != line {
				t.Errorf("%s:%d: %q", path, i+1, line)
			}
			if section == "Service" && !strings.HasPrefix(before, "#") && before == "" {
				t.Errorf("%s:%d: %s has no reason", path, i+1, name)
			}
			got[section+"/"+name] = append(got[section+"/"+name], value)
		}
		before = line
	}
	return got
}

// TestUnits: the files fit to what the daemon does, by its own flags and defaults.
func TestUnits(t *testing.T) {
	for _, kind := range []string{"user", "system"} {
		dir := filepath.Join("../../contrib/systemd", kind)
		service, socket := unit(t, filepath.Join(dir, "sandboxd.service")), unit(t, filepath.Join(dir, "sandboxd.socket"))
		one := func(u map[string][]string, name string) string {
			t.Helper()
			if len(u[name]) != 1 {
				t.Errorf("%s: %s is %q", kind, name, u[name])
				return ""
			}
			return u[name][0]
		}
		words := strings.Fields(one(service, "Service/ExecStart"))
		if len(words) == 0 || words[0] != "/usr/local/bin/sandboxd" {
			t.Fatalf("%q", words)
		}
		root := newRoot(io.Discard, io.Discard)
		if err := root.ParseFlags(words[1:]); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		system, err := root.Flags().GetBool("system")
		if err != nil || system != (kind == "system") {
			t.Errorf("%s: --system is %v, %v", kind, system, err)
		}
		if one(service, "Service/RestartPreventExitStatus") != strconv.Itoa(statusRefused) || one(service, "Service/KillMode") != "mixed" || one(service, "Service/Delegate") != "yes" {
			t.Errorf("%s: %v", kind, service)
		}
		mode, err := strconv.ParseUint(one(socket, "Socket/SocketMode"), 8, 32)
		at := one(socket, "Socket/ListenStream")
		switch {
		case kind == "user" && (mode != 0o600 || at != "%t/sandboxd/socket"), kind == "system" && (mode != 0o660 || at != "/run/sandboxd/socket" || one(socket, "Socket/SocketGroup") != "sandboxd"), err != nil:
			t.Errorf("%s: %v, %v", kind, socket, err)
		}
		// What would take a backend, or what clients see, away from the workers.
		for name := range service {
			name = strings.TrimPrefix(name, "Service/")
			if slices.ContainsFunc([]string{"Protect", "Private", "ReadOnly", "ReadWrite", "Inaccessible", "Temporary", "Bind", "RestrictNamespaces", "RestrictAddress", "SystemCallFilter", "MemoryDeny", "RootDirectory", "User", "DynamicUser"}, func(p string) bool { return strings.HasPrefix(name, p) }) {
				t.Errorf("%s: %s", kind, name)
			}
		}
	}
	text, err := os.ReadFile("../../contrib/systemd/system/sysusers.conf")
	must(t, err)
	if !strings.Contains(string(text), "\ng sandboxd -\n") || !strings.Contains(string(text), "\nu "+frontAccount+" - ") {
		t.Errorf("%s", text)
	}
}

// TestUnitsVerified has systemd itself read the units.
func TestUnitsVerified(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("needs systemd-analyze")
	}
	for _, kind := range []string{"user", "system"} {
		dir := t.TempDir()
		var files []string
		for _, name := range []string{"sandboxd.socket", "sandboxd.service"} {
			text, err := os.ReadFile(filepath.Join("../../contrib/systemd", kind, name))
			must(t, err)
			file := filepath.Join(dir, name)
			// The program must be there. A user's units are read as the system's: there
			// is no manager of this user to ask.
			must(t, os.WriteFile(file, []byte(strings.NewReplacer("/usr/local/bin/sandboxd", filepath.Join(bin, "sandboxd"), "%t/", "/run/user/0/").Replace(string(text))), 0o644))
			files = append(files, file)
		}
		cmd := exec.Command(analyze, append([]string{"verify", "--man=no", "--recursive-errors=no"}, files...)...)
		cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":/usr/lib/systemd/system")
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", kind, err, out)
		}
	}
}

// TestLaunchd: the property list is one, for a program and flags that there are.
func TestLaunchd(t *testing.T) {
	file, err := os.Open("../../contrib/launchd/sandboxd.plist")
	must(t, err)
	defer file.Close()
	d := xml.NewDecoder(file)
	depth, elements := 0, map[string]int{}
	var path []string
	texts := map[string]bool{}
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		switch x := token.(type) {
		case xml.StartElement:
			depth++
			elements[x.Name.Local]++
			path = append(path, x.Name.Local)
		case xml.EndElement:
			depth--
			path = path[:len(path)-1]
		case xml.CharData:
			if s := strings.TrimSpace(string(x)); s != "" {
				texts[path[len(path)-1]+" "+s] = true
			}
		}
	}
	if depth != 0 || elements["plist"] != 1 || !texts["key Label"] || !texts["key ProgramArguments"] || !texts["string /usr/local/bin/sandboxd"] || !texts["key KeepAlive"] {
		t.Errorf("%v %v", elements, texts)
	}
}

// restricted is a command under what the system's unit imposes, as far as that can be
// had without systemd: bounding set, no_new_privs, umask, limits, in a mount namespace
// of its own.
func restricted(t *testing.T, service map[string][]string, argv ...string) []string {
	t.Helper()
	for _, name := range []string{"unshare", "setpriv", "prlimit"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs %s", name)
		}
	}
	under := []string{"setpriv", "--no-new-privs"}
	if caps := service["Service/CapabilityBoundingSet"]; len(caps) > 0 {
		set := "-all"
		for c := range strings.FieldsSeq(caps[0]) {
			set += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
		}
		under = append([]string{"unshare", "--mount"}, append(under, "--bounding-set="+set)...)
	}
	files, err := strconv.ParseUint(service["Service/LimitNOFILE"][0], 10, 64)
	must(t, err)
	var most unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &most))
	under = append([]string{"prlimit", fmt.Sprint("--nofile=", min(files, most.Max))}, under...)
	return append(append(under, "sh", "-c", `umask `+service["Service/UMask"][0]+`; exec "$@"`, "sh"), argv...)
}

// TestUnderUnit: the hardening of the units leaves the backends as they are. The
// control is the same without it.
func TestUnderUnit(t *testing.T) {
	needLandlock(t)
	user := unit(t, "../../contrib/systemd/user/sandboxd.service")
	sbx := filepath.Join(bin, "sbx")
	doctor := func(argv ...string) string {
		t.Helper()
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%q: %v\n%s", argv, err, out)
		}
		return string(out)
	}
	want := strings.Count(doctor(sbx, "doctor"), "  ok ")
	if got := strings.Count(doctor(restricted(t, user, sbx, "doctor")...), "  ok "); got != want || want == 0 {
		t.Errorf("under the user's unit %d checks are ok, else %d", got, want)
	}
	needRoot(t)
	service := unit(t, "../../contrib/systemd/system/sandboxd.service")
	if got := strings.Count(doctor(restricted(t, service, sbx, "doctor")...), "  ok "); got != want {
		t.Errorf("under the system's unit %d checks are ok, else %d", got, want)
	}
	p := prepare(t, "--system", "--group", strconv.Itoa(users))
	p.cmd.Args = restricted(t, service, p.cmd.Args...)
	path, err := exec.LookPath(p.cmd.Args[0])
	must(t, err)
	p.cmd.Path = path
	p.start().wait()
	ws := filepath.Join(p.dir, "ws")
	must(t, os.Mkdir(ws, 0o700))
	must(t, os.Chown(ws, alice, alice))
	a, err := p.dialAs(alice, alice, []int{users}, ws)
	must(t, err)
	for name, change := range map[string]func(*protocol.Launch){
		"plain":  func(*protocol.Launch) {},
		"limits": func(m *protocol.Launch) { m.Limits = &protocol.LaunchLimits{Pids: 50, Timeout: 20000} },
		"disk":   func(m *protocol.Launch) { m.Limits = &protocol.LaunchLimits{Disk: 1 << 20} },
		"none":   func(m *protocol.Launch) { m.Mode = "danger-full-access" },
	} {
		r := a.finish(a.launch(change, "sh", "-c", "mkdir d.$$ && rmdir d.$$; id -u; umask; grep CapEff /proc/self/status"))
		if r.failure != nil && r.failure.Code == protocol.Refused && name == "limits" {
			t.Logf("%s: refused, as this host has no control groups for it: %s", name, r.failure.Message)
			continue
		}
		if r.status() != 0 || r.out.String() != fmt.Sprintf("%d\n0022\nCapEff:\t0000000000000000\n", alice) {
			t.Errorf("%s: %v", name, r)
		}
	}
	a.launch(nil, "sh", "-c", "setsid sleep 3600 & sleep 3600")
	w := a.started()
	_ = a.conn.Close()
	waitFor(t, "the end of another user's worker", func() bool { return !alive(w.PID) })
}
