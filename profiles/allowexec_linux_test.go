package profiles

import (
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd/policy"
)

func TestAllowExec(t *testing.T) {
	echo, err := filepath.EvalSymlinks("/bin/echo")
	if err != nil {
		t.Skip(err)
	}
	e, err := elf.Open(echo)
	if err != nil {
		t.Skip(err)
	}
	interp := programInterpreter(e)
	e.Close()
	w := newWorld(t)
	w.req.AllowExec = []string{echo}
	s, _ := w.ok()
	if !s.ExecOnly || !allows(t, s, echo, policy.Read|policy.Exec) {
		t.Error("the program may not run")
	}
	if real, err := filepath.EvalSymlinks(interp); err == nil && !allows(t, s, real, policy.Exec) {
		t.Errorf("the loader %s may not run", real)
	}
	for _, g := range s.Grants {
		if g.Access.Has(policy.Exec) && (g.Kind != policy.File || g.Source != "flag:--allow-exec") {
			t.Errorf("%+v still runs", g)
		}
	}
	if allows(t, s, "/usr/bin/env", policy.Exec) || !allows(t, s, "/usr/bin/env", policy.Read) || !allows(t, s, w.ws, policy.Write) {
		t.Error("other access changed")
	}
}

func TestAllowExecScripts(t *testing.T) {
	w := newWorld(t)
	script := func(name, text string) string {
		p := w.write(name, text)
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	sh, _ := filepath.EvalSymlinks("/bin/sh")
	env, _ := filepath.EvalSymlinks("/usr/bin/env")
	tool := script("tools/bin/mytool", "#!/bin/sh\n")
	w.env("PATH=" + w.root + "/tools/bin:/usr/bin:/bin")
	for _, c := range []struct{ text, needs string }{
		{"#!/bin/sh -e\n", sh},
		{"#! /usr/bin/env sh\n", sh},
		{"#!/usr/bin/env -S A=b sh -x\n", sh},
		{"#!/usr/bin/env sh", env},
		{"#!/usr/bin/env mytool\n", tool},
	} {
		p := script("script", c.text)
		w.req.AllowExec = []string{p}
		s, _ := w.ok()
		if !allows(t, s, p, policy.Exec) || !allows(t, s, c.needs, policy.Exec) {
			t.Errorf("%q: %s may not run", c.text, c.needs)
		}
	}
	for text, msg := range map[string]string{"#!/no/such\n": "/no/such", "#!/usr/bin/env nosuchtool\n": "nosuchtool", "#!" + w.root + "/script\n": ""} {
		w.req.AllowExec = []string{script("script", text)}
		_, _, err := Resolve(w.req)
		if msg != "" && (err == nil || !strings.Contains(err.Error(), msg)) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for p, msg := range map[string]string{w.write("plain", ""): "not an executable", w.root + "/none": "does not exist", "": "empty", w.root: "not an executable"} {
		w.req.AllowExec = []string{p}
		w.refused(msg, "")
	}
	w.req.AllowExec = []string{script("elf", "\x7fELF garbage")}
	w.refused("damaged", "")
}
