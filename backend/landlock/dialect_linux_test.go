package landlock

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd/dialect"
	"sandboxd/profiles"
)

// TestNativeDialect: what this backend answers to each denied touch is in its table,
// and what it answers outside is another thing.
func TestNativeDialect(t *testing.T) {
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		t.Skip("no /usr/bin/python3")
	}
	port, _ := listen(t)
	u, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	base := realTemp(t)
	ws, out, data := filepath.Join(base, "ws"), filepath.Join(base, "out"), filepath.Join(base, "data")
	fixture := `rm -rf ws out data; mkdir -p ws/.vscode ws/dir out data; cd ws; cp /bin/true secret; echo x >f; echo x >../out/f; echo x >../data/f; cp /bin/true ../out/true; echo x >.envrc`
	const python = `import ctypes, errno, os, signal, socket, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def call(n, *a):
    if n < 0: raise OSError(-n, "")
    if libc.syscall(n, *a) < 0: raise OSError(ctypes.get_errno(), "")
def unix(address):
    s = socket.socket(socket.AF_UNIX); s.connect(address)
out, data, pid, name, tcp, udp = sys.argv[1:7]
try:
    %s
    print("OK")
except OSError as e:
    print(errno.errorcode[e.errno])`
	d := dialect.Native()
	abstract := "sbx-test-" + filepath.Base(base)
	listener := exec.Command("/usr/bin/python3", "-c", `import socket, sys, time
for a in "\0"+sys.argv[1], sys.argv[2]:
    globals()["s"+a[1]] = s = socket.socket(socket.AF_UNIX); s.bind(a); s.listen(9); print("ready", flush=True)
time.sleep(600)`, abstract, base+"/sock")
	ready, err := listener.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Process.Kill(); _ = listener.Wait() }()
	if n, err := ready.Read(make([]byte, 12)); err != nil || n == 0 {
		t.Fatal(err)
	}
	for !exists(base + "/sock") {
	}
	for _, x := range []struct{ effect, attempt, want string }{
		{"fs.read", `open(out + "/f")`, "ENOENT"},
		{"fs.read", `open("secret")`, "EACCES"},
		{"fs.read", `os.listdir(out)`, "ENOENT"},
		{"fs.write", `open(data + "/f", "a")`, "EROFS"},
		{"fs.write", `os.mkdir(data + "/new")`, "EROFS"},
		{"fs.write", `open(out + "/new", "w")`, "ENOENT"},
		{"fs.write", `open("secret", "a")`, "EACCES"},
		{"fs.write", `os.rename("f", data + "/g")`, "EXDEV"},
		{"fs.write", `os.unlink("secret")`, "EBUSY"},
		{"fs.exec", `subprocess.run([out + "/true"])`, "ENOENT"},
		{"fs.exec", `subprocess.run(["./secret"])`, "EACCES"},
		{"fs.truncate", `os.truncate(data + "/f", 0)`, "EROFS"},
		{"fs.metadata", `os.chmod(data + "/f", 0o600)`, "EROFS"},
		{"fs.metadata", `os.chmod(out + "/f", 0o600)`, "ENOENT"},
		{"fs.protected", `open(".envrc", "a")`, "EROFS"},
		{"fs.protected", `os.mkdir(".idea")`, "EEXIST"},
		{"fs.protected", `os.rename(".vscode", "v")`, "EBUSY"},
		{"fs.protected", `os.rename("dir", ".vscode/dir")`, "EXDEV"},
		{"fs.hardlink", `os.link(data + "/f", "h")`, "EXDEV"},
		{"fs.hardlink", `os.link(out + "/f", "h")`, "ENOENT"},
		{"net.tcp.connect", `socket.socket().connect(("127.0.0.1", int(tcp)))`, "ECONNREFUSED"},
		{"net.udp", `s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("127.0.0.1", int(udp))); s.send(b"x"); time.sleep(0.05); s.send(b"x")`, "ECONNREFUSED"},
		{"net.other", `socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)`, "EPROTONOSUPPORT"},
		{"net.unix.path", `unix(os.path.dirname(out) + "/sock")`, "ENOENT"},
		{"net.unix.abstract", `unix("\0" + name)`, "ECONNREFUSED"},
		{"proc.signal", `os.kill(int(pid), 0)`, "ESRCH"},
		{"proc.see", `os.listdir("/proc/" + pid)`, "ENOENT"},
		{"kernel.keyring", `call({"x86_64": 250, "aarch64": 219}[os.uname().machine], 0, -3, 0)`, "EPERM"},
		{"kernel.userns", `call({"x86_64": 272, "aarch64": 97}[os.uname().machine], 0x10000000)`, "EPERM"},
		{"kernel.io_uring", `call(425, 1, ctypes.create_string_buffer(120))`, "ENOSYS"},
	} {
		if said := sh(t, base, fixture); said != "" {
			t.Fatal(said)
		}
		args := []string{out, data, fmt.Sprint(listener.Process.Pid), abstract, fmt.Sprint(port), fmt.Sprint(u.LocalAddr().(*net.UDPAddr).Port)}
		script := fmt.Sprintf(python, x.attempt)
		control := exec.Command("/usr/bin/python3", append([]string{"-c", script}, args...)...)
		control.Dir = ws
		told, err := control.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v %s", x.attempt, err, told)
		}
		if outside := strings.TrimSpace(string(told)); outside == x.want {
			t.Errorf("%s: %s is %s outside as well, and so proves nothing", x.effect, x.attempt, outside)
		}
		_ = sh(t, base, fixture)
		prepared := resolved(t, ws, func(r *profiles.Request) { r.Readable, r.Deny = []string{data}, []string{"secret"} })
		said, _ := runIn(t, prepared, ws, append([]string{"/usr/bin/python3", "-c", script}, args...)...)
		got := strings.TrimSpace(said)
		if got != x.want {
			t.Errorf("%s: %s is %s, want %s", x.effect, x.attempt, got, x.want)
		}
		if !d.Fits(x.effect, got) {
			t.Errorf("%s: %s is not in the table: %s", x.effect, got, x.attempt)
		}
	}
	if got := New(Options{Namespaces: true}).Probe().Dialect.Backend; got != "native" {
		t.Errorf("its dialect is %s's", got)
	}
	_ = os.Remove(base + "/sock")
}
