package main

import (
	"slices"
	"strings"

	"sandboxd/test/kernels/wire"
)

// kind says what a job's output is.
type kind string

const (
	kindFeatures kind = "features"
	kindDoctor   kind = "doctor"
	kindRun      kind = "run"
	kindTest     kind = "test"
	kindCase     kind = "case"
)

// job is one job of a machine and what its answer is compared with.
type job struct {
	wire.Job
	Kind kind
	// Fake is the ABI that abicap answers with; "" is the kernel itself.
	Fake    string
	Mode    string
	Package string
	Case    string
	Refused bool // of a case: sbx must refuse it
	// Of a test: about how many seconds it takes, if it does not skip all where there
	// is no backend.
	takes     float64
	ofBackend bool
}

var modes = []string{"read-only", "workspace-write", "danger-full-access"}

// users are who runs the jobs: in the guests, and by these names in the data.
var users = []user{{0, "root", "/root"}, {1000, "user", "/home/user"}}

type user struct {
	uid  int
	name string
	home string
}

// fakeNames are the ABIs that abicap can play: "none" is a kernel that is built
// without Landlock, "off" one that was booted without it.
var fakeNames = []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "off", "none"}

// testPackages are the packages whose tests run in the machines, as both users.
// To add one, add an entry; the guest is some 15 times slower than the host.
var testPackages = []testPackage{
	{
		path: "backend/landlock", seconds: 240, takes: 19, variants: true,
		run:  `^(TestConformance|TestPosture|TestWorkerIsConfined|TestOutcomes|TestTempIsPrivate|TestOrphansEnd|TestLeaderStaysFree|TestDeathOfLauncher|TestTreeIsBounded|TestEndings|TestEndingsAtOnce)$`,
		core: `^(TestConformance|TestPosture|TestWorkerIsConfined|TestTempIsPrivate|TestLeaderStaysFree|TestTreeIsBounded)$`,
	},
	{
		path: "internal/cgroup", seconds: 240, takes: 17, delegate: true, fakeless: true,
		// TestDelegated does as root what the ordinary user's job is; TestKillThousand
		// is about time, of which emulation takes another; the last two are halves
		// that other tests run.
		run: `^Test`, skip: `^(TestDelegated|TestKillThousand|TestHostIsShared|TestArrival)$`,
		env: []string{"SBX_TEST_DELEGATED=cgroup2 cgroup2 cgroup2 cgroup2"},
	},
	{
		path: "internal/launch", seconds: 120, takes: 8, delegate: true, fakeless: true,
		run: `^Test`,
	},
	// Stages need a root that can be changed (pivot_root), and Linux 5.12.
	{path: "internal/sys", seconds: 60, takes: 1.5, run: `^Test`, skip: `^TestStage`},
	{
		// Threads are confined each for itself, or all at once from ABI 8. The other
		// tests see the same on every kernel, and TestUnderLoad takes half a minute of an
		// emulated one.
		path: "internal/confine", seconds: 120, takes: 9, fakeless: true,
		run: `^(TestSelf|TestLandlockAlone|TestRootStays|TestHandled)$`,
	},
	{path: "internal/quota", seconds: 120, takes: 3, fakeless: true, run: `^Test`},
	{
		path: "internal/supervise", seconds: 300, foreign: true, run: `^Test`,
		// The first three are about what no processor has to do with, the others about
		// time, or about many descriptors and processes, of which init's children may
		// have few: an emulated machine takes half a minute for each.
		skip: `^(TestForeignRoot|TestCloseEndsBlockedCalls|TestKilledWorker|TestExhaustedDescriptors|TestExhaustedProcesses|TestInterruptedCallsAreNotRepeated|TestCapacityOfTheOwnSet)$`,
	},
	// Locks of private directories; terminals and pipes.
	{
		path: "internal/scratch", seconds: 120, foreign: true, run: `^Test`,
		// About how long it takes with thousands of directories.
		skip: `^(TestRemoveDeepWithFewDescriptors|TestRemoveIsLinear)$`,
	},
	{path: "internal/stream", seconds: 120, foreign: true, run: `^Test`},
	// The others interpret the filters, and need no kernel.
	{path: "internal/seccomp", seconds: 60, foreign: true, run: `^TestLive`},
}

type testPackage struct {
	path      string
	run, skip string // -test.run, -test.skip
	// core is run in variants and on kernels that are alike: what is about Landlock.
	// The ways to end are the same there. Empty: run.
	core    string
	seconds int
	// takes is how many seconds one user's took in a guest when this was written. The
	// machines are started in the order of what theirs come to.
	takes float64
	// variants: they run also where a kernel is booted with other parameters,
	// which are about Landlock and user namespaces.
	variants bool
	// fakeless: they do not run where Landlock's answers are faked as well, as they
	// are not about Landlock and that machine takes longest anyway, nor on kernels that
	// are alike but for Landlock.
	fakeless bool
	// foreign: they run only in machines of another processor than amd64, on which
	// the test command runs them anyway.
	foreign bool
	// delegate gives the ordinary user a cgroup with all controllers, and env to
	// tell so. Root's jobs are in the root of cgroup2, which has them anyway.
	delegate bool
	env      []string
}

// delegatedLimits are those of a delegated cgroup: the limitsAbove of
// internal/cgroup's tests, which ask for more below it.
var delegatedLimits = map[string]string{"memory.max": "400M", "pids.max": "20000", "cpu.max": "800000 100000"}

// binary is where the test binary of a package is in the guest. The probe is
// beside it, as backendtest wants.
func (p testPackage) binary() string { return testDir + "/" + p.name() + ".test" }

func (p testPackage) runsOn(goarch string) bool { return !p.foreign || goarch != amd64 }

func (p testPackage) name() string { return strings.ReplaceAll(p.path, "/", "-") }

// Paths in the guest.
const (
	testDir   = "/t"
	casesDir  = "/cases"
	sbxPath   = "/usr/local/bin/sbx"
	abicap    = "/usr/local/bin/abicap"
	moduleDir = "/modules" // loaded by init in the order of the names
)

// answerSeconds bounds one call of sbx. It takes 0.1 to 1 s in a guest, and
// more where the host's cores are taken.
const answerSeconds = 60

// jobsOf lists what a machine runs: answers first, as they are quick and say
// what the tests stand on.
func jobsOf(m machine) []job {
	var list []job
	for _, fake := range append([]string{""}, m.Fakes...) {
		for _, u := range users {
			list = append(list, answerJobs(u, fake, sbxPath, abicap)...)
		}
	}
	for _, p := range testPackages {
		if !p.runsOn(m.Arch) || m.commandLine() != nil && !p.variants || (m.Alike || len(m.Fakes) > 0) && p.fakeless ||
			slices.Contains(m.Leaves, p.path) {
			continue
		}
		for _, u := range users {
			if p.core != "" && (m.Alike || m.commandLine() != nil) {
				p.run = p.core
			}
			list = append(list, p.job(u))
		}
	}
	return list
}

// answerJobs ask sbx what it can do, let it try, and let it run something.
func answerJobs(u user, fake, sbx, abicap string) []job {
	add := func(list []job, k kind, mode string, args ...string) []job {
		name := string(k)
		if mode != "" {
			name += "-" + mode
		}
		args = append([]string{sbx}, args...)
		if fake != "" {
			name = "abi-" + fake + "-" + name
			args = append([]string{abicap, fake}, args...)
		}
		return append(list, job{
			Job:  wire.Job{Name: name + "-" + u.name, Args: args, Dir: u.home + "/work", UID: u.uid, Seconds: answerSeconds},
			Kind: k, Fake: fake, Mode: mode,
		})
	}
	list := add(nil, kindFeatures, "", "features", "--json")
	list = add(list, kindDoctor, "", "doctor", "--json")
	for _, mode := range modes {
		args := []string{"run", "--mode", mode}
		if mode != "danger-full-access" {
			// What a kernel's Landlock gives by itself is what is declared: auto would
			// take namespaces, which close what it leaves open.
			args = append(args, "--backend", "landlock")
		}
		list = add(list, kindRun, mode, append(args, "--json", "--stdout", "/dev/null", "--", "/bin/true")...)
	}
	return list
}

func (p testPackage) job(u user) job {
	j := job{
		Job: wire.Job{
			Name: "test-" + p.name() + "-" + u.name, UID: u.uid, Dir: testDir, Seconds: p.seconds,
			Args: []string{p.binary(), "-test.v=test2json", "-test.run", p.run, "-test.skip", p.skip},
		},
		Kind: kindTest, Package: p.path, takes: p.takes, ofBackend: p.variants,
	}
	if p.delegate && u.uid != 0 {
		j.Delegate, j.Limits, j.Env = true, delegatedLimits, p.env
	}
	return j
}
