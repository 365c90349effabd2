package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sandboxd/test/kernels/wire"
)

// boot is one machine that is about to be started.
type boot struct {
	arch    arch
	kernel  kernel
	initrd  string
	memory  int // MB
	append  string
	console string // files that QEMU writes, anew in each attempt
	results string
	key     []byte
}

// kernelParameters are every machine's. Without them a boot takes longer for
// nothing that is tested here: no crypto self-tests, no CPU mitigations under
// emulation. panic=-1 with -no-reboot makes a panic end QEMU.
const kernelParameters = "quiet panic=-1 rdinit=/init mitigations=off cryptomgr.notests"

// lowResolution has the kernel keep timers to its ticks, of 4 ms. The runtimes of
// all Go programs wait for some microseconds again and again: with a timer for
// each, and the emulator's own behind it, the tests take half as long again.
const lowResolution = "highres=off"

// prepare writes what QEMU reads into dir.
func prepare(dir string, m machine, k kernel, base *initramfs, jobs []job, more ...string) (*boot, error) {
	of := arches[m.Arch]
	parameters := []string{"console=" + of.console, kernelParameters}
	if !m.HighRes {
		parameters = append(parameters, lowResolution)
	}
	b := &boot{
		arch: of, kernel: k, key: make([]byte, 32),
		initrd: filepath.Join(dir, "initrd.cpio"),
		append: strings.Join(slices.Concat(parameters, m.commandLine(), more), " "),
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if _, err := rand.Read(b.key); err != nil {
		return nil, err
	}
	size, err := base.writeFor(b.initrd, k, b.key, jobs)
	if err != nil {
		return nil, fmt.Errorf("writing the initramfs: %w", err)
	}
	b.memory = memoryFor(size)
	return b, nil
}

// memoryFor is the guest's memory in MB: the archive, its unpacked copy, and
// room for the kernel and the tests.
func memoryFor(size int64) int { return max(768, int(2*size>>20)+500) }

// qemu is the command line. The console is a character device of QEMU's, results
// a file or "" for none.
func (b *boot) qemu(console, results string) []string {
	return slices.Concat([]string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-accel", "tcg", "-smp", "1", "-m", strconv.Itoa(b.memory),
		"-kernel", b.kernel.image(), "-initrd", b.initrd, "-append", b.append,
	}, b.arch.machine, []string{"-serial", console}, b.arch.results(results))
}

// attempt is how one start of a machine went.
type attempt struct {
	Seconds float64
	// CPU is what QEMU had of processors, in seconds: what a machine costs, whatever
	// else runs beside it.
	CPU float64
	// Exit is QEMU's status; -1 if a signal ended it.
	Exit     int
	TimedOut bool
	// Complaint is the end of QEMU's standard error, or why it did not start.
	Complaint string
	// Cut says why the records are not complete.
	Cut string
	// Failure is the verdict; "" is a good end.
	Failure string

	records []wire.Record
	console []string
}

// run starts the machine and waits for its end. Results of an attempt before
// are overwritten.
func (b *boot) run(ctx context.Context, limit time.Duration) attempt {
	for _, f := range []string{b.console, b.results} {
		if err := os.WriteFile(f, nil, 0o644); err != nil {
			return attempt{Exit: -1, Complaint: err.Error()}
		}
	}
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// nice: the host's other work goes first.
	c := command(timed, "nice", append([]string{"-n", "10", b.arch.qemu}, b.qemu("file:"+b.console, b.results)...)...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	start := time.Now()
	err := c.Run()
	a := attempt{Seconds: time.Since(start).Seconds(), TimedOut: timed.Err() != nil && ctx.Err() == nil, Exit: -1}
	a.Complaint = strings.Join(tail(stderr.String(), 5), "; ")
	if c.ProcessState != nil {
		a.Exit = c.ProcessState.ExitCode()
		a.CPU = (c.ProcessState.UserTime() + c.ProcessState.SystemTime()).Seconds()
	} else if err != nil {
		a.Complaint = err.Error()
	}
	a.read(b)
	return a
}

func (a *attempt) read(b *boot) {
	if text, err := os.ReadFile(b.console); err == nil {
		a.console = tail(string(text), 25)
	}
	f, err := os.Open(b.results)
	if err != nil {
		a.Cut = err.Error()
		return
	}
	defer f.Close()
	if a.records, _, err = wire.Read(f, b.key); err != nil {
		a.Cut = err.Error()
	}
}

// verdict says what an attempt comes to: why it failed, "" if it did not, and
// whether another one is worth while. A machine that is gone without a word
// (panic, reset: QEMU's status is 0) or hangs may have met a fault of the
// emulation. One that ended otherwise would end so again. done is QEMU's status
// at a good end.
func (a attempt) verdict(done int) (failure string, again bool) {
	switch {
	case a.TimedOut:
		return "the machine hung " + a.where(), true
	case a.Cut == "" && a.Exit == done:
		return "", false
	case a.Exit == 0 && a.Cut != "":
		return "the machine panicked or reset itself " + a.where(), true
	case a.Cut == "":
		return fmt.Sprintf("after its last record the machine ended with QEMU's status %d, not %d", a.Exit, done), false
	}
	return fmt.Sprintf("the machine ended %s with QEMU's status %d: %s", a.where(), a.Exit, a.Cut), false
}

// story is what a person needs to know of a failure.
func (a attempt) story() []string {
	lines := append([]string{a.Failure}, a.console...)
	if a.Complaint != "" {
		lines = append(lines, "QEMU: "+a.Complaint)
	}
	return lines
}

// where is the step that the machine had reached.
func (a attempt) where() string { return reached(a.records) }

func reached(records []wire.Record) string {
	for i := len(records) - 1; i >= 0; i-- {
		switch r := records[i]; {
		case r.End != nil:
			return "at its end"
		case r.Result != nil:
			return "after " + r.Result.Name
		case r.Begin != "":
			return "in " + r.Begin
		case r.Facts != nil:
			return "before its first job"
		}
	}
	return "while booting"
}

// progress reads what a running machine has sent so far.
func (b *boot) progress() string {
	f, err := os.Open(b.results)
	if err != nil {
		return "starting"
	}
	defer f.Close()
	records, _, _ := wire.Read(f, b.key)
	return reached(records)
}

// missing names the packages of programs that this tool needs and the host lacks.
func missing(userland bool, picked []machine) error {
	need := []struct{ program, pkg string }{
		{"busybox", "busybox-static"}, {"apt-get", "apt"}, {"dpkg-deb", "dpkg"},
		{"xz", "xz-utils"}, {"nice", "coreutils"}, {"go", "golang"},
	}
	for _, name := range archesOf(picked) {
		need = append(need, struct{ program, pkg string }{arches[name].qemu, arches[name].qemuPackage})
	}
	if userland {
		need = append(need, struct{ program, pkg string }{"ldd", "libc-bin"}, struct{ program, pkg string }{"python3", "python3"})
	}
	var programs, packages []string
	for _, n := range need {
		if _, err := exec.LookPath(n.program); err != nil {
			programs, packages = append(programs, n.program), append(packages, n.pkg)
		}
	}
	if programs == nil {
		return nil
	}
	return withHint(fmt.Errorf("not found: %s", strings.Join(programs, ", ")),
		"apt-get install --no-install-recommends "+strings.Join(packages, " "))
}
