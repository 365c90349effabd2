package profiles

import (
	"errors"
	"fmt"
	"syscall"
)

// loosening are the keys that a project's own file must not have, since who
// writes the project need not be who runs it.
var loosening = []struct {
	key string
	has func(*profile) bool
}{
	{"extends", func(p *profile) bool { return len(p.extends) > 0 }},
	{"allow_gap", func(p *profile) bool { return p.allowGap != 0 }},
	{"detect", func(p *profile) bool { return len(p.commands)+len(p.detectEnv) > 0 }},
	{"grant[0]", func(p *profile) bool { return len(p.grants) > 0 }},
	{"cache[0]", func(p *profile) bool { return len(p.caches) > 0 }},
}

// readProject reads the project's own file. A link in its place is refused: it
// could make a file elsewhere speak for the project, or tell what it holds.
func (r *resolver) readProject() error {
	file := join(r.spec.Workspace, ProjectFile)
	if r.req.NoProjectProfile {
		if r.v.lstat(file).errno == 0 {
			r.weaken("--no-project-profile", "the project's own limits in "+show(file)+" do not apply")
		}
		return nil
	}
	if errno := r.v.lstat(file).errno; errno == syscall.ENOENT || errno == syscall.ENAMETOOLONG || r.v.placeholder(file) {
		return nil
	}
	data, err := readRegular(file, syscall.O_NOFOLLOW)
	if err != nil {
		why := explainFile(err)
		if errors.Is(err, syscall.ELOOP) {
			why = "is a symbolic link"
		}
		return &RefusalError{Msg: fmt.Sprintf("the project's %s %s", show(file), why), Hint: "make it a plain file, or pass --no-project-profile", Err: err}
	}
	p, problems := parseProject(data, file)
	if e := firstError(problems); e != nil {
		ref := e.refusal()
		if ref.Hint == "" {
			ref.Hint = "correct it, or pass --no-project-profile"
		}
		return ref
	}
	r.project = &p
	return nil
}

// parseProject is parse with the further rule that a project only tightens.
func parseProject(data []byte, file string) (profile, []Problem) {
	p, problems := parse(data, file)
	if firstError(problems) != nil {
		return p, problems
	}
	c := checker{file: file, data: data, problems: problems}
	const hint = "a project's own file may only tighten (mode, net, deny, require, toolchains, env.drop); put the rest in your own profile"
	for _, l := range loosening {
		if l.has(&p) {
			c.fail(l.key, hint, "a project must not set %s", trimIndex(l.key))
		}
	}
	for i, e := range p.env {
		key := fmt.Sprintf("env[%d]", i)
		if len(e.pass) > 0 {
			c.fail(key+".pass", hint, "a project must not set env.pass")
		}
		if len(e.set) > 0 {
			c.fail(key+".set", hint, "a project must not set env.set")
		}
	}
	return p, c.problems
}

func trimIndex(key string) string {
	for i := range key {
		if key[i] == '[' {
			return key[:i]
		}
	}
	return key
}
