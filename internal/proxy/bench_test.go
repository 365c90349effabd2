package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// blob is how much goes through in one measurement of throughput.
const blob = 256 << 20

// roles are what the benchmark of throughput runs in processes of their own, as the
// worker, the launcher and a host are: each serves a listener until its end.
var roles = map[string]func(l *net.TCPListener, to string) error{
	// A host that sends blob bytes to whoever connects, and then ends.
	"host": func(l *net.TCPListener, _ string) error {
		chunk := make([]byte, 256<<10)
		return acceptAll(l, func(c net.Conn) {
			for sent := 0; sent < blob; sent += len(chunk) {
				if _, err := c.Write(chunk); err != nil {
					return
				}
			}
		})
	},
	// What any relay costs: io.Copy, which uses splice(2) on Linux.
	"relay": func(l *net.TCPListener, to string) error {
		return acceptAll(l, func(c net.Conn) {
			if up, err := net.Dial("tcp", to); err == nil {
				_, _ = io.Copy(c, up)
				_ = up.Close()
			}
		})
	},
	"proxy": func(l *net.TCPListener, _ string) error {
		allow, err := ParseRules([]string{"127.0.0.1:*"})
		if err != nil {
			return err
		}
		s, err := New(Options{Allow: allow})
		if err != nil {
			return err
		}
		return s.Serve(l)
	},
}

func acceptAll(l *net.TCPListener, serve func(net.Conn)) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			serve(c)
			_ = c.Close()
		}()
	}
}

const roleVariable = "SBX_PROXY_ROLE"

func TestMain(m *testing.M) {
	role, to, isRole := strings.Cut(os.Getenv(roleVariable), " ")
	if !isRole {
		os.Exit(m.Run())
	}
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the benchmark ends
		os.Exit(0)
	}()
	panic(roles[role](l, to))
}

// launch starts a role, and gives its address.
func launch(b *testing.B, role, to string) string {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+role+" "+to)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = stdin.Close(); _ = cmd.Wait() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// drain reads everything as a client would, with a large buffer.
func drain(b *testing.B, from io.Reader, buf []byte) time.Duration {
	began, total := time.Now(), 0
	for {
		n, err := from.Read(buf)
		total += n
		if err == io.EOF {
			break
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	if total != blob {
		b.Fatalf("%d of %d bytes", total, blob)
	}
	return time.Since(began)
}

// BenchmarkThroughput compares, turn by turn, a download straight from its host, one
// through a relay that only copies, and one through a tunnel. Three busy processes
// stand against two, so that on two processors the ratio to a direct one cannot be 1.
// The metrics are medians, as ratios of throughput.
func BenchmarkThroughput(b *testing.B) {
	to := launch(b, "host", "")
	relay := launch(b, "relay", to)
	r := &rig{addr: launch(b, "proxy", "")}
	buf := make([]byte, 256<<10)
	direct := func() time.Duration { return drain(b, dial(b, to), buf) }
	direct()
	for _, w := range ways {
		b.Run(w.name, func(b *testing.B) {
			var straight, copied, through []time.Duration
			for range max(b.N, 5) {
				straight = append(straight, direct())
				copied = append(copied, drain(b, dial(b, relay), buf))
				_, from := w.open(r, b, to)
				through = append(through, drain(b, from, buf))
			}
			d := median(straight)
			b.ReportMetric(blob/median(through).Seconds()/(1<<20), "MiB/s")
			b.ReportMetric(blob/d.Seconds()/(1<<20), "direct-MiB/s")
			b.ReportMetric(d.Seconds()/median(through).Seconds(), "of-direct")
			b.ReportMetric(median(copied).Seconds()/median(through).Seconds(), "of-relay")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func median(all []time.Duration) time.Duration {
	all = slices.Clone(all)
	slices.Sort(all)
	return all[len(all)/2]
}

// BenchmarkRequest compares, turn by turn, one small request with a connection of its
// own: straight, by plain HTTP, by CONNECT and by SOCKS.
func BenchmarkRequest(b *testing.B) {
	at := web(b, hello)
	r := start(b, Options{}, []string{"127.0.0.1:*"})
	get := fmt.Sprintf("GET /x HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", at)
	whole := fmt.Sprintf("GET http://%s/x HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", at, at)
	ask := func(conn io.Writer, from io.Reader, text string) {
		_, _ = io.WriteString(conn, text)
		resp, err := http.ReadResponse(bufio.NewReader(from), nil)
		if err != nil || resp.StatusCode != 200 {
			b.Fatal(resp, err)
		}
		if _, err := io.ReadAll(resp.Body); err != nil {
			b.Fatal(err)
		}
	}
	kinds := []struct {
		name string
		do   func()
	}{
		{"direct", func() { c := dial(b, at.String()); ask(c, c, get); _ = c.Close() }},
		{"http", func() { c := dial(b, r.addr); ask(c, c, whole); _ = c.Close() }},
		{"connect", func() { c, from := ways[0].open(r, b, at.String()); ask(c, from, get); _ = c.Close() }},
		{"socks", func() { c, from := ways[1].open(r, b, at.String()); ask(c, from, get); _ = c.Close() }},
	}
	b.Run("all", func(b *testing.B) {
		took := make([][]time.Duration, len(kinds))
		for range max(b.N, 200) {
			for i, k := range kinds {
				began := time.Now()
				k.do()
				took[i] = append(took[i], time.Since(began))
			}
		}
		for i, k := range kinds {
			b.ReportMetric(float64(median(took[i]).Microseconds()), k.name+"-µs")
			if i > 0 {
				b.ReportMetric(float64((median(took[i]) - median(took[0])).Microseconds()), k.name+"-added-µs")
			}
		}
		b.ReportMetric(0, "ns/op")
	})
}
