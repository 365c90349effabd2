package profiles

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// Settings that tools keep in one file with their passwords are looked into
// before a preset grants them. This finds what is written plainly under a name
// that says so; it is no proof that there is nothing else.

// maxScan is how much of a file is looked through; what is longer counts as if
// it held a secret.
const maxScan = 64 << 10

// What a rule says about files that seem to hold a secret.
const (
	secretsSkip = "skip" // they are not granted
	secretsWarn = "warn" // they are, as the tool stops without them, and loudly
)

// finding is where a file seems to hold a secret, without the secret.
type finding struct {
	line int    // from 1; 0 if the whole file is meant
	what string // the key, never its value
}

func (f finding) String() string {
	if f.line == 0 {
		return f.what
	}
	return fmt.Sprintf("line %d, %s", f.line, f.what)
}

// scanFile looks for a secret in a settings file, which is a regular one. A
// file that this user may not read is none of the worker's either.
func (r *resolver) scanFile(file string) (finding, bool) {
	fd, err := openFile(file, syscall.O_NOFOLLOW)
	if err != nil {
		return finding{}, false
	}
	defer syscall.Close(fd)
	data := r.v.buf[len(r.v.buf):] // what listings leave
	for len(data) <= maxScan {
		if cap(data)-len(data) < readRoom {
			data = slices.Grow(data, 8<<10)
		}
		room := data[len(data):cap(data)]
		n, err := syscall.Read(fd, room)
		if err == syscall.EINTR {
			continue
		}
		data = data[:len(data)+max(n, 0)]
		if len(data) <= maxScan && (err != nil || n < len(room)) { // a regular file gives less at its end only
			return scanSecrets(data)
		}
	}
	return finding{what: fmt.Sprintf("more than %d KiB, too much to look through", maxScan>>10)}, true
}

// scanSecrets looks through the text of a settings file: INI, TOML, KEY=VALUE
// or XML.
func scanSecrets(data []byte) (finding, bool) {
	if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("<")) {
		what, line := scanLines(data, false)
		return finding{line, what}, what != ""
	}
	// The files that come with a tool explain themselves in long comments, with
	// made-up passwords.
	for done := 0; ; {
		text, rest, comment := bytes.Cut(data, []byte("<!--"))
		if what, line := scanLines(text, true); what != "" {
			return finding{done + line, what}, true
		}
		if !comment {
			return finding{}, false
		}
		end := max(bytes.Index(rest, []byte("-->")), 0)
		if end == 0 && !bytes.HasPrefix(rest, []byte("-->")) {
			end = len(rest)
		}
		done += bytes.Count(data[:len(text)+len("<!--")+end], []byte("\n"))
		data = rest[end:]
	}
}

// scanLines returns the first line that seems to hold a secret, from 1, and
// what tells so; "" if there is none.
func scanLines(data []byte, xml bool) (what string, line int) {
	for text := range bytes.Lines(data) {
		line++
		text = bytes.TrimSpace(text)
		if len(text) == 0 || !xml && (text[0] == '#' || text[0] == ';') && !bytes.Contains(text, []byte("://")) {
			continue
		}
		if !suspect(text) { // nearly always
			continue
		}
		s := string(text)
		if hasUserinfo(s) {
			return "an address with a password", line
		}
		key := ""
		switch {
		case xml:
			key = secretElement(s)
		case s[0] != '#' && s[0] != ';':
			key = secretAssignment(s)
		}
		if key != "" {
			return "key " + show(shorten(key)), line
		}
	}
	return "", 0
}

// suspect tells, fast, whether a line may hold what the rest looks for: an
// address, or a part of what all names of secrets have.
func suspect(line []byte) bool {
	for i, c := range line[:max(len(line)-2, 0)] {
		b, d := line[i+1]|0x20, line[i+2]|0x20
		switch c | 0x20 {
		case ':' | 0x20:
			if line[i+1] == '/' {
				return true
			}
		case 'p': // password, pass, pat
			if b == 'a' && (d == 's' || d == 't') {
				return true
			}
		case 't', 'k': // token, key
			if b == 'o' && d == 'k' || b == 'e' && d == 'y' {
				return true
			}
		case 's', 'c': // secret, credential
			if b == 'e' && d == 'c' || b == 'r' && d == 'e' {
				return true
			}
		case 'a': // auth, aws, azure
			if b == 'u' && d == 't' || b == 'w' && d == 's' || b == 'z' && d == 'u' {
				return true
			}
		case 'h', 'g': // header, google
			if b == 'e' && d == 'a' || b == 'o' && d == 'o' {
				return true
			}
		case 'd': // dsn, database
			if b == 's' && d == 'n' || b == 'a' && d == 't' {
				return true
			}
		case 'n': // netrc
			if b == 'e' && d == 't' {
				return true
			}
		}
	}
	return false
}

// secretElement returns the name of an XML element that says secret.
func secretElement(s string) string {
	for rest := s; ; {
		i := strings.IndexByte(rest, '<')
		if i < 0 {
			return secretAssignment(s) // <server password="x"/>
		}
		rest = rest[i+1:]
		name := rest[:wordEnd(rest)]
		after, _ := strings.CutPrefix(rest[len(name):], ">")
		if secretKey(name) && !strings.HasPrefix(after, "<") && !strings.HasPrefix(after, "/>") {
			return name
		}
	}
}

// secretAssignment returns the key of a KEY = VALUE in one line that says
// secret, wherever in the line it is.
func secretAssignment(s string) string {
	for at := 0; ; at++ {
		i := strings.IndexByte(s[at:], '=')
		if i < 0 {
			return ""
		}
		at += i
		if strings.Trim(s[at+1:], " \t\"'") == "" { // no value
			continue
		}
		before := strings.TrimRight(s[:at], " \t\"'")
		if key := before[wordStart(before):]; secretKey(key) {
			return key
		}
	}
}

func wordByte(c byte) bool {
	return c == '_' || c == '-' || c == '.' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
}

func wordEnd(s string) int {
	i := 0
	for i < len(s) && wordByte(s[i]) {
		i++
	}
	return i
}

func wordStart(s string) int {
	i := len(s)
	for i > 0 && wordByte(s[i-1]) {
		i--
	}
	return i
}

// secretWords are parts of names under which secrets are kept.
var secretWords = []string{
	"token", "password", "passwd", "passphrase", "secret", "extraheader", "apikey", "api_key", "api-key", "authtoken", "privatekey", "private_key", "private-key", "goauth",
}

// secretKey tells whether a name says that its value is secret.
func secretKey(name string) bool {
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		name = name[i+1:]
	}
	low := strings.ToLower(name)
	if low == "" {
		return false
	}
	for _, w := range secretWords {
		if strings.Contains(low, w) {
			return true
		}
	}
	if strings.HasSuffix(low, "pass") && low != "askpass" || low == "_auth" {
		return true
	}
	// A variable in an [env] table; where a proxy is, is no secret by itself.
	return strings.ToUpper(name) == name && strings.ContainsRune(name, '_') && !strings.HasSuffix(name, "PROXY") && hazardOf(name) == mayBeSecret
}

// hasUserinfo tells whether a line holds an address with a password in it, or
// with a name so long that it is a token.
func hasUserinfo(s string) bool {
	for {
		i := strings.Index(s, "://")
		if i < 0 {
			return false
		}
		scheme := strings.ToLower(s[:i])
		s = s[i+len("://"):]
		authority := s
		if end := strings.IndexAny(s, "/ \t\"'?#<>,"); end >= 0 {
			authority = s[:end]
		}
		at := strings.LastIndexByte(authority, '@')
		if at < 0 {
			continue
		}
		user, password, _ := strings.Cut(authority[:at], ":")
		if password != "" || len(user) >= 20 && (strings.HasSuffix(scheme, "http") || strings.HasSuffix(scheme, "https")) {
			return true
		}
	}
}
