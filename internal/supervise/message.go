package supervise

import (
	"encoding/binary"
	"math"
	"syscall"
)

// vector is struct iovec: a piece of the worker's memory.
type vector struct{ base, len uint64 }

// header is struct msghdr of a 64-bit call.
type header struct {
	name       uint64
	nameLen    int32
	vectors    uint64
	vectorsLen uint64
	control    uint64
	controlLen uint64
}

const (
	headerSize  = 56 // struct msghdr
	mheaderSize = 64 // struct mmsghdr: a msghdr and the sent length
	vectorSize  = 16
	cmsgHeader  = 16
	ucredSize   = 12
	maxRW       = math.MaxInt32 &^ 4095 // MAX_RW_COUNT
)

func parseHeader(b [headerSize]byte) (header, syscall.Errno) {
	u64 := func(at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }
	h := header{
		name:       u64(0),
		nameLen:    int32(binary.NativeEndian.Uint32(b[8:])),
		vectors:    u64(16),
		vectorsLen: u64(24),
		control:    u64(32),
		controlLen: u64(40),
	}
	switch {
	case h.name == 0:
		h.nameLen = 0
	case h.nameLen < 0:
		return h, syscall.EINVAL
	case h.nameLen > maxAddr: // the kernel clamps here, where connect refuses
		h.nameLen = maxAddr
	}
	if h.vectorsLen > maxVectors {
		return h, syscall.EMSGSIZE
	}
	if h.control == 0 {
		h.controlLen = 0
	}
	if h.controlLen > maxControl {
		return h, syscall.ENOBUFS
	}
	return h, 0
}

// parseVectors reads an iovec array and cuts it, as the kernel does, to what
// one call can transfer.
func parseVectors(b []byte) ([]vector, uint64, syscall.Errno) {
	list := make([]vector, 0, len(b)/vectorSize)
	var total uint64
	for ; len(b) >= vectorSize; b = b[vectorSize:] {
		v := vector{binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint64(b[8:])}
		if v.len > math.MaxInt64 {
			return nil, 0, syscall.EINVAL
		}
		v.len = min(v.len, maxRW-total)
		total += v.len
		list = append(list, v)
	}
	return list, total, 0
}

// segment is a piece of memory to copy next.
type segment struct {
	addr uint64
	len  int
}

// segments returns where the bytes from off on lie, at most limit of them.
func segments(list []vector, off uint64, limit int) []segment {
	var out []segment
	for _, v := range list {
		if off >= v.len {
			off -= v.len
			continue
		}
		n := min(v.len-off, uint64(limit))
		if n > 0 {
			out = append(out, segment{v.base + off, int(n)})
		}
		if limit -= int(n); limit <= 0 {
			break
		}
		off = 0
	}
	return out
}

const (
	solSocket      = 1
	scmRights      = 1
	scmCredentials = 2
)

// controlEdit rewrites what only means something in the sender's own process.
type controlEdit struct {
	fd  func(worker int32) (int32, syscall.Errno) // its descriptor in ours
	pid int32                                     // ours, for SCM_CREDENTIALS
}

// edit walks the control messages as the kernel does and rewrites them in
// place: no length changes. It tells whether credentials were among them. The
// kernel stops, without an error, at a message that does not fit its rules for
// the next one; from there on the bytes are not passed.
func (e controlEdit) edit(control []byte) (out []byte, creds bool, errno syscall.Errno) {
	fds := 0
	for off := 0; len(control)-off >= cmsgHeader; {
		m := control[off:]
		size := binary.NativeEndian.Uint64(m)
		if size < cmsgHeader || size > uint64(len(m)) {
			return nil, false, syscall.EINVAL
		}
		level, kind := binary.NativeEndian.Uint32(m[8:]), binary.NativeEndian.Uint32(m[12:])
		data := m[cmsgHeader:size]
		switch {
		case level == solSocket && kind == scmRights:
			if fds += len(data) / 4; fds > maxFDs {
				return nil, false, syscall.EINVAL
			}
			for ; len(data) >= 4; data = data[4:] {
				fd, errno := e.fd(int32(binary.NativeEndian.Uint32(data)))
				if errno != 0 {
					return nil, false, errno
				}
				binary.NativeEndian.PutUint32(data, uint32(fd))
			}
		case level == solSocket && kind == scmCredentials:
			if len(data) != ucredSize {
				return nil, false, syscall.EINVAL
			}
			binary.NativeEndian.PutUint32(data, uint32(e.pid))
			creds = true
		}
		next := off + (int(size)+7)&^7
		if next > len(control) {
			return control[:off+int(size)], creds, 0
		}
		off = next
		if len(control)-off < cmsgHeader {
			return control[:off], creds, 0
		}
	}
	return nil, creds, 0
}

// appendCredentials adds explicit SCM_CREDENTIALS.
func appendCredentials(control []byte, pid, uid, gid int) []byte {
	for len(control)%8 != 0 {
		control = append(control, 0)
	}
	control = binary.NativeEndian.AppendUint64(control, cmsgHeader+ucredSize)
	for _, v := range []uint32{solSocket, scmCredentials, uint32(pid), uint32(uid), uint32(gid), 0} {
		control = binary.NativeEndian.AppendUint32(control, v)
	}
	return control
}
