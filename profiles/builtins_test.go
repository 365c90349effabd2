package profiles

import (
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"os"
	"strings"
	"testing"

	"sandboxd/policy"
)

var update = flag.Bool("update", false, "rewrite generated and golden files")

// presetOrder is the order in which presets apply.
var presetOrder = []string{"system", "dev", "git", "go", "node", "python", "rust", "java", "cc", "managers"}

func parsedPresets(t testing.TB) []profile {
	t.Helper()
	var all []profile
	for _, name := range presetOrder {
		text, err := presetText(name)
		if err != nil {
			t.Fatal(err)
		}
		p, problems := parse(text, "presets/"+name+".toml")
		for _, pr := range problems {
			t.Errorf("%s", pr)
		}
		if p.name != name || p.description == "" {
			t.Errorf("preset %s calls itself %q, %q", name, p.name, p.description)
		}
		p.file = ""
		all = append(all, p)
	}
	return all
}

// The presets that are compiled in are those in presets/*.toml.
func TestBuiltinsAreCurrent(t *testing.T) {
	want := generate(t, parsedPresets(t))
	if *update {
		if err := os.WriteFile("builtins.go", want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile("builtins.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatal("builtins.go is not what presets/*.toml say: run go generate ./profiles")
	}
}

func TestEveryPresetFileIsListed(t *testing.T) {
	files, err := presetFiles.ReadDir("presets")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(presetOrder) || len(builtins) != len(presetOrder) {
		t.Fatalf("%d files, %d compiled in, %d in the order", len(files), len(builtins), len(presetOrder))
	}
}

// generate writes composite literals that need no work at start-up.
func generate(t testing.TB, all []profile) []byte {
	var b strings.Builder
	b.WriteString("// Code generated from presets/*.toml by go generate; DO NOT EDIT.\n\npackage profiles\n\nimport \"sandboxd/policy\"\n\nvar builtins = []profile{\n")
	for _, p := range all {
		if p.mode != 0 || p.net != 0 || len(p.deny)+len(p.extends) > 0 || p.require|p.allowGap != 0 || p.requireFull || p.limited {
			t.Fatalf("preset %s sets what presets must not set", p.name)
		}
		fmt.Fprintf(&b, "{\nname: %q,\ndescription: %q,\n", p.name, p.description)
		list(&b, "commands", p.commands)
		list(&b, "detectEnv", p.detectEnv)
		b.WriteString("grants: []rule{\n")
		for _, g := range p.grants {
			fmt.Fprintf(&b, "{paths: %s, access: %s, reason: %q", words(g.paths), accessExpr(g.access), g.reason)
			if g.required {
				b.WriteString(", required: true")
			}
			if g.secrets != "" {
				fmt.Fprintf(&b, ", secrets: %q", g.secrets)
			}
			if g.os != "" {
				fmt.Fprintf(&b, ", os: %q", g.os)
			}
			b.WriteString("},\n")
		}
		b.WriteString("},\nenv: []envRule{\n")
		for _, e := range p.env {
			if len(e.set)+len(e.drop) > 0 {
				t.Fatalf("preset %s sets variables", p.name)
			}
			fmt.Fprintf(&b, "{pass: %s, reason: %q},\n", words(e.pass), e.reason)
		}
		b.WriteString("},\n")
		if len(p.caches) > 0 {
			b.WriteString("caches: []cacheRule{\n")
			for _, c := range p.caches {
				fmt.Fprintf(&b, "{Env: %q, Dir: %q, Reason: %q},\n", c.Env, c.Dir, c.Reason)
			}
			b.WriteString("},\n")
		}
		b.WriteString("},\n")
	}
	b.WriteString("}\n")
	src, err := format.Source([]byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func list(b *strings.Builder, field string, w []string) {
	if len(w) > 0 {
		fmt.Fprintf(b, "%s: %s,\n", field, words(w))
	}
}

func words(w []string) string { return fmt.Sprintf("%#v", w) }

func accessExpr(a policy.Access) string {
	var bits []string
	for _, c := range []struct {
		bit  policy.Access
		name string
	}{{policy.Read, "Read"}, {policy.Write, "Write"}, {policy.Exec, "Exec"}, {policy.Ioctl, "Ioctl"}} {
		if a.Has(c.bit) {
			bits = append(bits, "policy."+c.name)
		}
	}
	return strings.Join(bits, " | ")
}
