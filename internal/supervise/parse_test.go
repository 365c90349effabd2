package supervise

import (
	"bytes"
	"encoding/binary"
	"strings"
	"syscall"
	"testing"
)

func TestParseUnix(t *testing.T) {
	u := func(s string) []byte { return append(binary.NativeEndian.AppendUint16(nil, afUnix), s...) }
	for _, c := range []struct {
		in    []byte
		kind  unixKind
		name  string
		errno syscall.Errno
	}{
		{nil, 0, "", syscall.EINVAL},
		{[]byte{1}, 0, "", syscall.EINVAL},
		{u(""), unixAutobind, "", 0},
		{u("\x00"), unixAbstract, "", 0},
		{u("\x00a\x00b"), unixAbstract, "a\x00b", 0},
		{u("a\x00b"), unixPath, "a", 0},
		{u(strings.Repeat("a", 108)), unixPath, strings.Repeat("a", 108), 0},
		{u(strings.Repeat("a", 109)), 0, "", syscall.EINVAL},
		{u("\x00" + strings.Repeat("a", 108)), 0, "", syscall.EINVAL},
		{make([]byte, 2), unixUnspec, "", 0},
		{make([]byte, 128), unixUnspec, "", 0},
		{make([]byte, 129), 0, "", syscall.EINVAL},
		{binary.NativeEndian.AppendUint64(nil, afInet), 0, "", syscall.EINVAL},
	} {
		got, errno := parseUnix(c.in)
		if errno != c.errno || errno == 0 && got != (unixAddress{c.kind, c.name}) {
			t.Errorf("%q: %+v, %v", c.in, got, errno)
		}
	}
}

func TestShmName(t *testing.T) {
	for in, want := range map[string]string{
		"/dev/shm/a": "a", "//dev///shm/./a": "a", "/dev/shm/..a": "..a", "/dev/./shm/sem.x": "sem.x",
		"/dev/shm": "", "/dev/shm/": "", "/dev/shm/.": "", "/dev/shm/..": "", "/dev/shm/a/": "", "/dev/shm/a/.": "",
		"/dev/shm/a/b": "", "dev/shm/a": "", "/dev/shm/../shm/a": "", "/dev/shmx": "", "/x/dev/shm/a": "", "": "", "/": "",
	} {
		if got, ok := shmName(in); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v", in, got, ok)
		}
	}
}

func TestSplitLast(t *testing.T) {
	for in, want := range map[string][2]string{
		"a": {"", "a"}, "/a": {"/", "a"}, "a/b": {"a/", "b"}, "a/b//": {"a/", "b//"}, "/": {"/", "."}, "///": {"/", "."},
		"a/": {"", "a/"}, "..": {"", ".."}, "a/..": {"a/", ".."}, "/a/./b": {"/a/./", "b"},
	} {
		if dir, name := splitLast(in); dir != want[0] || name != want[1] {
			t.Errorf("%q: %q, %q", in, dir, name)
		}
	}
}

func TestParseStatus(t *testing.T) {
	st := parseStatus([]byte("Name:\tx\nUmask:\t0027\nTgid:\t42\nSigPnd:\t0000000000000002\nShdPnd:\t0000000000000004\nSigBlk:\t0000000000000004\nSigCgt:\t0000000000000006\n"))
	if st.tgid != 42 || st.umask != 0o27 || !st.interrupted() {
		t.Errorf("%+v", st)
	}
	st.pending = 0
	if st.interrupted() {
		t.Error("a blocked signal interrupts")
	}
	if parseStatus(nil).umask != 0o777 {
		t.Error("an unknown umask is not the narrowest")
	}
	if n := parseFileLimit([]byte("Limit x\nMax file size             100                  unlimited            bytes\n")); n != 100 {
		t.Error(n)
	}
}

func rights(fds ...uint32) []byte {
	b := binary.NativeEndian.AppendUint64(nil, uint64(cmsgHeader+4*len(fds)))
	b = binary.NativeEndian.AppendUint32(b, solSocket)
	b = binary.NativeEndian.AppendUint32(b, scmRights)
	for _, fd := range fds {
		b = binary.NativeEndian.AppendUint32(b, fd)
	}
	return b
}

func FuzzControl(f *testing.F) {
	f.Add([]byte{})
	f.Add(rights(1, 2, 3))
	f.Add(append(append(rights(1, 2), rights(7)...), 0, 0, 0))
	f.Add(appendCredentials(rights(4), 1, 2, 3))
	f.Add(binary.NativeEndian.AppendUint64(make([]byte, 16), ^uint64(0)))
	f.Fuzz(func(t *testing.T, in []byte) {
		given := 0
		e := controlEdit{pid: 77, fd: func(n int32) (int32, syscall.Errno) {
			if n < 0 {
				return -1, syscall.EBADF
			}
			given++
			return 1000 + n%7, 0
		}}
		work := bytes.Clone(in)
		out, _, errno := e.edit(work)
		if errno != 0 {
			return
		}
		if len(out) > len(in) || given > maxFDs {
			t.Fatalf("%d bytes of %d, %d descriptors", len(out), len(in), given)
		}
		// What is passed on holds our numbers only: a second pass finds no other.
		check := controlEdit{fd: func(n int32) (int32, syscall.Errno) {
			if n < 1000 || n > 1006 {
				t.Fatalf("the worker's descriptor %d is passed as ours", n)
			}
			given--
			return n, 0
		}}
		if _, _, errno := check.edit(out); errno != 0 || given != 0 {
			t.Fatalf("second pass: %v, %d left", errno, given)
		}
	})
}

func FuzzHeader(f *testing.F) {
	f.Add(make([]byte, headerSize), make([]byte, 32))
	f.Add(bytes.Repeat([]byte{0xff}, headerSize), bytes.Repeat([]byte{0xff}, 64))
	f.Add(bytes.Repeat([]byte{0x01, 0}, headerSize/2), bytes.Repeat([]byte{0xff, 0x7f}, 64))
	f.Fuzz(func(t *testing.T, raw, vectors []byte) {
		var b [headerSize]byte
		copy(b[:], raw)
		if h, errno := parseHeader(b); errno == 0 && (h.nameLen < 0 || h.nameLen > maxAddr || h.vectorsLen > maxVectors || h.controlLen > maxControl) {
			t.Fatalf("%+v", h)
		}
		list, total, errno := parseVectors(vectors[:min(len(vectors), maxVectors*vectorSize)])
		if errno != 0 {
			return
		}
		if total > maxRW {
			t.Fatal(total)
		}
		for _, off := range []uint64{0, total / 2, total} {
			want := int(min(total-off, chunk))
			for _, s := range segments(list, off, chunk) {
				if s.len <= 0 {
					t.Fatalf("segment %+v", s)
				}
				want -= s.len
			}
			if want != 0 {
				t.Fatalf("segments miss %d bytes", want)
			}
		}
	})
}

func FuzzAddress(f *testing.F) {
	f.Add([]byte{1, 0, 'a'})
	f.Add(unixSockaddr("/x/y"))
	f.Add(make([]byte, 28))
	f.Fuzz(func(t *testing.T, in []byte) {
		u, errno := parseUnix(in)
		if errno == 0 && u.kind == unixPath && (u.name == "" || len(u.name) > 108 || strings.ContainsRune(u.name, 0)) {
			t.Fatalf("%q", u.name)
		}
		if errno == 0 && u.kind == unixPath {
			dir, name := splitLast(u.name)
			if name == "" || strings.Contains(strings.TrimRight(name, "/"), "/") {
				t.Fatalf("%q, %q", dir, name)
			}
		}
		parseInet(in)
		parseStatus(in)
		parseFileLimit(in)
		shmName(string(in))
	})
}
