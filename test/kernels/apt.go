package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// suites are those that together have every wanted series, and small lists.
var suites = []suite{
	{"debian-security", "bullseye-security"}, // 5.10
	{"debian-security", "bookworm-security"}, // 6.1, 6.12
	{"debian-security", "trixie-security"},   // 6.12
	{"debian", "trixie-backports"},           // 6.16 and later
}

// foreignSuites have what guests need where the host's own is for another
// processor. Their lists are large.
var foreignSuites = []suite{{"debian", "trixie"}}

type suite struct{ archive, name string }

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// apt is a private apt: its sources, lists, state and cache are below one
// directory, its list of installed packages is empty, and hooks that the
// machine's apt may have are off. Nothing of the machine's apt changes.
type apt struct{ config string }

// newApt writes the configuration. Only the mirror's address is the machine's.
func newApt(ctx context.Context, dir string, of arch) (*apt, error) {
	if strings.ContainsAny(dir, "\"\\\n;") {
		return nil, fmt.Errorf("the cache %q has a name that apt's configuration cannot hold", dir)
	}
	if _, err := os.Stat(keyring); err != nil {
		return nil, withHint(fmt.Errorf("the keys that sign packages: %w", err), "apt-get install debian-archive-keyring")
	}
	mirrors, err := debianMirrors(ctx)
	if err != nil {
		return nil, err
	}
	wanted := suites
	if of.name != hostArch {
		wanted = slices.Concat(suites, foreignSuites)
	}
	var sources strings.Builder
	for _, s := range wanted {
		fmt.Fprintf(&sources, "deb [arch=%s signed-by=%s] %s %s main\n", of.name, keyring, mirrors[s.archive], s.name)
	}
	for _, d := range []string{"lists/partial", "archives/partial", "state"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	a := &apt{filepath.Join(dir, "apt.conf")}
	return a, errors.Join(
		os.WriteFile(filepath.Join(dir, "sources.list"), []byte(sources.String()), 0o644),
		os.WriteFile(filepath.Join(dir, "state", "status"), nil, 0o644),
		os.WriteFile(a.config, []byte(aptConfig(dir, of.name)), 0o644))
}

// aptConfig is read after the machine's own configuration, of which proxies and
// the like stay.
func aptConfig(dir, arch string) string {
	return fmt.Sprintf(`#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
Dir::Etc::SourceList "%[1]s/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "%[1]s/state";
Dir::State::Lists "%[1]s/lists";
Dir::State::status "%[1]s/state/status";
Dir::Cache "%[1]s";
Dir::Cache::archives "%[1]s/archives";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::http::Timeout "15";
Acquire::https::Timeout "15";
APT::Architecture "%[2]s";
APT::Architectures { "%[2]s"; };
APT::Sandbox::User "root";
`, dir, arch)
}

// debianMirrors takes the addresses of Debian's archives from the machine's
// apt, by the last element of their paths.
func debianMirrors(ctx context.Context) (map[string]string, error) {
	out, err := output(command(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI)"))
	if err != nil {
		return nil, fmt.Errorf("asking apt for its mirror: %w", err)
	}
	mirrors := map[string]string{}
	for uri := range strings.FieldsSeq(out) {
		name := filepath.Base(uri)
		if mirrors[name] == "" {
			mirrors[name] = uri
		}
	}
	for _, s := range suites {
		if mirrors[s.archive] == "" {
			return nil, withHint(fmt.Errorf("the machine's apt knows no mirror of %s", s.archive),
				"the kernels are Debian's: run this on Debian, or in a container of it")
		}
	}
	return mirrors, nil
}

func (a *apt) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	c := command(ctx, program, append([]string{"-qq", "-c", a.config}, args...)...)
	c.Env = append(os.Environ(), "LC_ALL=C")
	return c
}

// update fetches the lists.
func (a *apt) update(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	// --error-on=any: else apt goes on with old lists and calls it success.
	_, err := output(a.command(ctx, "apt-get", "update", "--error-on=any"))
	return err
}

// download puts one package into dir and returns its file.
func (a *apt) download(ctx context.Context, c candidate, dir string) (string, error) {
	cmd := a.command(ctx, "apt-get", "download", c.Package+"="+c.Version)
	cmd.Dir = dir
	if _, err := output(cmd); err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("apt left %d packages", len(found))
	}
	if err != nil {
		return "", err
	}
	return found[0], nil
}

// available is what the lists say, one stanza for each package and version.
func (a *apt) available(ctx context.Context) ([]byte, error) {
	out, err := output(a.command(ctx, "apt-cache", "dumpavail"))
	return []byte(out), err
}

// candidate is a package that may hold a kernel of a series.
type candidate struct{ Package, Version string }

// packages are those of a candidate. What linux-binary-* leaves out is in
// linux-modules-*, of which the mirror does not keep every version.
func (c candidate) packages(lists []byte) []string {
	list := []string{c.Package}
	if release, split := strings.CutPrefix(c.Package, "linux-binary-"); split {
		modules := "linux-modules-" + release
		if bytes.Contains(lists, []byte("\nPackage: "+modules+"\n")) {
			list = append(list, modules)
		}
	}
	return list
}

// versionText is what may become the name of a directory and an argument of apt.
var versionText = regexp.MustCompile(`^[0-9][0-9A-Za-z.+~-]*$`)

// candidates finds the cloud kernels of a series, newest first. Until 6.18 the
// kernel is in linux-image-*; from 6.19 on that name is an empty package that
// depends on linux-binary-*, which has the kernel and nothing else.
func candidates(dump io.Reader, series, arch string) ([]candidate, error) {
	name := regexp.MustCompile(`^linux-(binary|image)-` + regexp.QuoteMeta(series) + `[.+-][a-z0-9.+-]*cloud-` + arch + `$`)
	var list []candidate
	var c candidate
	size := 0
	stanza := func() {
		const empty = 1 << 20
		if name.MatchString(c.Package) && versionText.MatchString(c.Version) && size > empty && !slices.Contains(list, c) {
			list = append(list, c)
		}
		c, size = candidate{}, 0
	}
	in := bufio.NewScanner(dump)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		key, value, _ := strings.Cut(in.Text(), ": ")
		switch key {
		case "":
			stanza()
		case "Package":
			c.Package = value
		case "Version":
			c.Version = value
		case "Size":
			size, _ = strconv.Atoi(value)
		}
	}
	stanza()
	slices.SortStableFunc(list, func(a, b candidate) int { return compareVersions(b.Version, a.Version) })
	return list, in.Err()
}

// output runs a command and returns what it printed; an error has the end of
// what it complained.
func output(c *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	if err != nil {
		err = fmt.Errorf("%s: %w%s", filepath.Base(c.Path), err, complaint(stderr.String()))
	}
	return stdout.String(), err
}

// complaint is the end of a program's standard error, for an error message.
func complaint(stderr string) string {
	lines := tail(stderr, 5)
	if len(lines) == 0 {
		return ""
	}
	return ":\n  " + strings.Join(lines, "\n  ")
}
