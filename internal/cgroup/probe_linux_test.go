package cgroup

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// probed is what Probe finds after changes to a mount namespace, as a user.
func probed(t *testing.T, attr syscall.SysProcAttr, exe string, changes ...string) Host {
	t.Helper()
	c := exec.Command(exe, append([]string{workerArg, "probe"}, changes...)...)
	c.SysProcAttr = &attr
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	var h Host
	if err := json.Unmarshal(out, &h); err != nil {
		t.Fatal(err)
	}
	return h
}

func mountPoints(t *testing.T, version int) []string {
	t.Helper()
	h := Probe()
	defer h.Close()
	var list []string
	for _, m := range h.state.mounts {
		if m.version == version || version == 0 {
			list = append(list, m.point)
		}
	}
	return list
}

// TestProbeOfChangedMounts: what a container engine, or an administrator, can
// do to the mounts.
func TestProbeOfChangedMounts(t *testing.T) {
	needRoot(t)
	exe := publicCopy(t)
	private := syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	change := func(how string) []string {
		list := []string{"private:/"}
		for _, p := range mountPoints(t, 0) {
			list = append(list, how+":"+p)
		}
		return list
	}
	now := probed(t, private, exe, "private:/")
	need(t, "kill", now.Kill)
	for how, want := range map[string]Cause{"ro": ReadOnly, "hide": NotMounted, "umount": NotMounted} {
		h := probed(t, private, exe, change(how)...)
		for name, a := range map[string]Ability{"memory": h.Memory, "pids": h.Pids, "cpu": h.CPU, "kill": h.Kill} {
			if now.ability(name).Can() && (a.Can() || a.Cause != want || a.Why == "" || a.Fix == "") {
				t.Errorf("%s: %s is %+v", how, name, a)
			}
		}
		if visible := how == "ro"; (h.Layout != None) != visible || visible && h.Layout != now.Layout {
			t.Errorf("%s: the layout is %s", how, h.Layout)
		}
	}
	// Read only for a user, too: another user would not help.
	user := private
	user.Credential = &syscall.Credential{Uid: 1000, Gid: 1000}
	h := probed(t, user, exe)
	for name, a := range map[string]Ability{"memory": h.Memory, "pids": h.Pids, "cpu": h.CPU, "kill": h.Kill} {
		if now.ability(name).Can() && (a.Can() || a.Cause != NotDelegated || a.Why == "" || a.Fix == "") {
			t.Errorf("as a user: %s is %+v", name, a)
		}
	}
}

// TestProbeInNamespace: the mounts are of the namespace outside.
func TestProbeInNamespace(t *testing.T) {
	needRoot(t)
	host := probe(t)
	need(t, "kill", host.Kill)
	g := group(t, host, everything(host))
	w := command(t, "probe")
	w.SysProcAttr.Unshareflags = syscall.CLONE_NEWCGROUP
	if err := w.startIn(g); err != nil {
		t.Fatal(err)
	}
	line := w.line(t)
	w.signal()
	var h Host
	if err := json.Unmarshal([]byte(line), &h); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	// The group need not be in every cgroup1 hierarchy, and by one of those the
	// tree could be ended.
	for name, a := range map[string]Ability{"memory": h.Memory, "pids": h.Pids, "cpu": h.CPU, "kill": h.Kill} {
		if name == "kill" && a.By == one {
			continue
		}
		if host.ability(name).Can() && (a.Can() || a.Cause != OtherNamespace || a.Fix == "") {
			t.Errorf("%s is %+v", name, a)
		}
	}
}

// TestProbeChangesNothing: asking makes no directory and moves no one.
func TestProbeChangesNothing(t *testing.T) {
	self := func() string {
		text, err := os.ReadFile("/proc/self/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range mountPoints(t, 0) {
			entries, _ := filepath.Glob(filepath.Join(p, "*"))
			for _, e := range entries {
				// Groups have ids, of which Probe has none: others' launches, which
				// come and go.
				if id, ok := strings.CutPrefix(filepath.Base(e), groupPrefix); ok && checkID(id) == nil {
					continue
				}
				if fi, err := os.Stat(e); err == nil && fi.IsDir() {
					text = append(text, e...)
				}
			}
			control, _ := os.ReadFile(filepath.Join(p, "cgroup.subtree_control"))
			text = append(text, control...)
		}
		return string(text)
	}
	before := self()
	h := Probe()
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if after := self(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}
