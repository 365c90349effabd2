package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"sandboxd/test/kernels/wire"
)

// hostFakes are what --host asks for: the ABIs that no kernel of the matrix
// has, and both ways of having none.
var hostFakes = []string{"1", "3", "4", "5", "off", "none"}

// ordinaryID is whom the ordinary user's part runs as when root runs the tool.
const ordinaryID = 65534

// runOnHost asks sbx under faked ABIs on this host, as root if that is the
// caller, and as an ordinary user.
func runOnHost(ctx context.Context, dir string, e *expectations, p *progress) ([]*result, error) {
	p.say("building for the host")
	dir = filepath.Join(dir, "host")
	bin, err := build(ctx, dir, hostArch, false)
	if err != nil {
		return nil, err
	}
	list, err := hostUsers(dir)
	if err != nil {
		return nil, err
	}
	sbx, abicap := filepath.Join(bin, "sbx"), filepath.Join(bin, "abicap")
	start := time.Now()
	self := &answers{}
	j := answerJobs(list[0].user, "", sbx, abicap)[0]
	self.take(j, list[0].run(ctx, j))
	if self.Features == nil {
		return nil, fmt.Errorf("asking sbx for this host: %v", self.Trouble)
	}
	own, _ := self.Features.backend("landlock")
	r := &result{Machine: "host"}
	results := []*result{r}
	for _, fake := range hostFakes {
		if n, err := strconv.Atoi(fake); err == nil && own.Facts.ABI < n {
			results = append(results, &result{Machine: subjectName("host", fake), NotRun: fmt.Sprintf("this kernel's ABI is %d", own.Facts.ABI)})
			continue
		}
		p.say("%s", subjectName("host", fake))
		for _, u := range list {
			for _, j := range answerJobs(u.user, fake, sbx, abicap) {
				if ctx.Err() != nil {
					return nil, ctx.Err()
				}
				out := u.run(ctx, j)
				if out.Result.TimedOut {
					r.fail(j.Name, fmt.Sprintf("ended after its %d s", j.Seconds))
					continue
				}
				r.subject(fake).of(u.name).take(j, out)
			}
			r.Checks = append(r.Checks, e.checkAnswers(machine{Name: "host"}, fake, u.name, r.subject(fake).of(u.name), nil)...)
		}
	}
	r.Seconds = time.Since(start).Seconds()
	return results, nil
}

// hostUser runs jobs on this host. Its home is a temporary one.
type hostUser struct {
	user
	credential *syscall.Credential
}

func hostUsers(dir string) ([]hostUser, error) {
	ordinary := hostUser{user: user{os.Geteuid(), "user", filepath.Join(dir, "user")}}
	list := []hostUser{ordinary}
	if os.Geteuid() == 0 {
		list[0].uid = ordinaryID
		list[0].credential = &syscall.Credential{Uid: ordinaryID, Gid: ordinaryID}
		list = append(list, hostUser{user: user{0, "root", filepath.Join(dir, "root")}})
		slices.Reverse(list)
	}
	for _, u := range list {
		work := filepath.Join(u.home, "work")
		if err := os.MkdirAll(work, 0o755); err != nil {
			return nil, err
		}
		if err := errors.Join(os.Chown(u.home, u.uid, -1), os.Chown(work, u.uid, -1)); err != nil {
			return nil, err
		}
	}
	// The ordinary user must get through to the commands and its home.
	return list, errors.Join(os.Chmod(filepath.Dir(dir), 0o711), os.Chmod(dir, 0o755))
}

func (u hostUser) run(ctx context.Context, j job) jobOutput {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(j.Seconds)*time.Second)
	defer cancel()
	c := command(ctx, j.Args[0], j.Args[1:]...)
	c.Dir = j.Dir
	c.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + u.home, "USER=" + u.name, "LOGNAME=" + u.name, "LANG=C.UTF-8", "TMPDIR=/tmp"}
	c.SysProcAttr.Credential = u.credential
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	out := jobOutput{Result: wire.Result{Name: j.Name, UID: u.uid, Exit: -1, TimedOut: ctx.Err() != nil}}
	if c.ProcessState != nil {
		out.Result.Exit = c.ProcessState.ExitCode()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(&stderr, err)
	}
	out.stdout, out.stderr = stdout.Bytes(), stderr.Bytes()
	return out
}
