package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// protoMPTCP is IPPROTO_MPTCP.
const protoMPTCP = 262

func init() {
	register(map[string]op{
		// IP. The operands are an address with its port and a token to send.
		"tcp-connect":        {2, inetConnect(unix.SOCK_STREAM, 0), shared},
		"mptcp-connect":      {2, inetConnect(unix.SOCK_STREAM, protoMPTCP), shared},
		"udp-connect":        {2, inetConnect(unix.SOCK_DGRAM, 0), shared},
		"tcp-fastopen":       {2, inetSend(unix.SOCK_STREAM, sendtoWith(unix.MSG_FASTOPEN)), shared},
		"udp-sendto":         {2, inetSend(unix.SOCK_DGRAM, sendtoWith(0)), shared},
		"udp-sendmsg":        {2, inetSend(unix.SOCK_DGRAM, sendmsg), shared},
		"udp-sendmmsg":       {2, inetSend(unix.SOCK_DGRAM, sendmmsg), shared},
		"tcp-bind":           {1, inetBind(unix.SOCK_STREAM, false), shared},
		"tcp-listen":         {1, inetBind(unix.SOCK_STREAM, true), shared},
		"udp-bind":           {1, inetBind(unix.SOCK_DGRAM, false), shared},
		"tcp-listen-unbound": {0, listenUnbound, shared},

		// "socket FAMILY TYPE PROTOCOL" is for all others, by number.
		"socket":     {3, socketOnly, shared},
		"socketpair": {0, socketpair, shared},

		// AF_UNIX. The operands are a type, a path or "@name", and a token.
		"unix-connect":       {3, unixConnect, shared},
		"unix-sendto":        {2, unixSend(sendtoWith(0)), shared},
		"unix-sendmsg":       {2, unixSend(sendmsg), shared},
		"unix-sendmmsg":      {2, unixSend(sendmmsg), shared},
		"unix-own":           {2, unixOwn, shared},
		"unix-own-dgram":     {2, unixOwnDatagram, shared},
		"unix-rights":        {1, unixRights, shared},
		"unix-bind":          {1, unixBind, shared},
		"unix-long-address":  {1, unixLongAddress, shared},
		"netlink-interfaces": {0, netlinkInterfaces, shared},
	})
}

// address is a raw sockaddr.
type address []byte

func inetAddress(s string) (address, int, error) {
	ap, err := netip.ParseAddrPort(s)
	if err != nil {
		return nil, 0, err
	}
	if ap.Addr().Is4() {
		a := binary.NativeEndian.AppendUint16(nil, unix.AF_INET)
		a = binary.BigEndian.AppendUint16(a, ap.Port())
		a = append(a, ap.Addr().AsSlice()...)
		return append(a, make([]byte, 8)...), unix.AF_INET, nil
	}
	a := binary.NativeEndian.AppendUint16(nil, unix.AF_INET6)
	a = binary.BigEndian.AppendUint16(a, ap.Port())
	a = append(a, make([]byte, 4)...) // flow label
	a = append(a, ap.Addr().AsSlice()...)
	return append(a, make([]byte, 4)...), unix.AF_INET6, nil
}

// unixAddress takes "@name" for an abstract name.
func unixAddress(s string) address {
	a := binary.NativeEndian.AppendUint16(nil, unix.AF_UNIX)
	if name, abstract := strings.CutPrefix(s, "@"); abstract {
		return append(append(a, 0), name...)
	}
	return append(append(a, s...), 0)
}

func connect(fd int, to address) error {
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&to[0])), uintptr(len(to)))
	return orNil(errno)
}

func bind(fd int, at address) error {
	_, _, errno := unix.Syscall(unix.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(&at[0])), uintptr(len(at)))
	return orNil(errno)
}

// send is one way to send a message to an address.
type send func(fd int, to address, text []byte) error

func sendtoWith(flags uintptr) send {
	return func(fd int, to address, text []byte) error {
		_, _, errno := unix.Syscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&text[0])), uintptr(len(text)), flags,
			uintptr(unsafe.Pointer(&to[0])), uintptr(len(to)))
		return orNil(errno)
	}
}

// mmsghdr is struct mmsghdr.
type mmsghdr struct {
	msg unix.Msghdr
	n   uint32
	_   uint32
}

func message(to address, text []byte) (*mmsghdr, *unix.Iovec) {
	iov := &unix.Iovec{Base: &text[0]}
	iov.SetLen(len(text))
	m := &mmsghdr{msg: unix.Msghdr{Name: &to[0], Namelen: uint32(len(to)), Iov: iov}}
	m.msg.SetIovlen(1)
	return m, iov
}

func sendmsg(fd int, to address, text []byte) error {
	m, _ := message(to, text)
	_, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.msg)), 0)
	return orNil(errno)
}

func sendmmsg(fd int, to address, text []byte) error {
	m, _ := message(to, text)
	_, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(m)), 1, 0, 0, 0)
	return orNil(errno)
}

// orNil makes no error of errno 0.
func orNil(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

func inetConnect(kind, proto int) func([]string) (string, error) {
	return func(a []string) (string, error) {
		to, family, err := inetAddress(a[0])
		if err != nil {
			return "", err
		}
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, proto)
		if err != nil {
			return "", err
		}
		if err := connect(fd, to); err != nil {
			return "", err
		}
		_, err = unix.Write(fd, []byte(a[1]))
		return "", err
	}
}

func inetSend(kind int, by send) func([]string) (string, error) {
	return func(a []string) (string, error) {
		to, family, err := inetAddress(a[0])
		if err != nil {
			return "", err
		}
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return "", err
		}
		return "", by(fd, to, []byte(a[1]))
	}
}

func inetBind(kind int, listen bool) func([]string) (string, error) {
	return func(a []string) (string, error) {
		at, family, err := inetAddress(a[0])
		if err != nil {
			return "", err
		}
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return "", err
		}
		if err := bind(fd, at); err != nil || !listen {
			return "", err
		}
		return "", unix.Listen(fd, 1)
	}
}

// listenUnbound lets the kernel pick a port, past every rule on bind.
func listenUnbound([]string) (string, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	return "", unix.Listen(fd, 1)
}

func numbers(a []string) ([]int, error) {
	n := make([]int, len(a))
	for i, s := range a {
		v, err := strconv.ParseInt(s, 0, 64)
		if err != nil {
			return nil, err
		}
		n[i] = int(v)
	}
	return n, nil
}

func socketOnly(a []string) (string, error) {
	n, err := numbers(a)
	if err != nil {
		return "", err
	}
	return "", closing(unix.Socket(n[0], n[1]|unix.SOCK_CLOEXEC, n[2]))
}

func netlinkInterfaces([]string) (string, error) {
	rib, err := syscall.NetlinkRIB(unix.RTM_GETLINK, unix.AF_UNSPEC)
	if err == nil && len(rib) == 0 {
		err = errors.New("no interface is listed")
	}
	return "", err
}

var unixTypes = map[string]int{"stream": unix.SOCK_STREAM, "dgram": unix.SOCK_DGRAM, "seqpacket": unix.SOCK_SEQPACKET}

func unixSocket(kind string) (int, error) {
	n, ok := unixTypes[kind]
	if !ok {
		return -1, fmt.Errorf("unknown type %q", kind)
	}
	return unix.Socket(unix.AF_UNIX, n|unix.SOCK_CLOEXEC, 0)
}

func unixConnect(a []string) (string, error) {
	fd, err := unixSocket(a[0])
	if err != nil {
		return "", err
	}
	if err := connect(fd, unixAddress(a[1])); err != nil {
		return "", err
	}
	_, err = unix.Write(fd, []byte(a[2]))
	return "", err
}

func unixSend(by send) func([]string) (string, error) {
	return func(a []string) (string, error) {
		fd, err := unixSocket("dgram")
		if err != nil {
			return "", err
		}
		return "", by(fd, unixAddress(a[0]), []byte(a[1]))
	}
}

func unixBind(a []string) (string, error) {
	fd, err := unixSocket("stream")
	if err != nil {
		return "", err
	}
	return "", bind(fd, unixAddress(a[0]))
}

// unixLongAddress hides a path behind a sockaddr that is longer than any.
func unixLongAddress(a []string) (string, error) {
	fd, err := unixSocket("stream")
	if err != nil {
		return "", err
	}
	to := append(unixAddress(a[0]), make([]byte, 4096)...)
	return "", connect(fd, to)
}

// unixOwn is a server and its client in one worker.
func unixOwn(a []string) (string, error) {
	server, err := unixSocket(a[0])
	if err != nil {
		return "", err
	}
	at := unixAddress(a[1])
	if err := bind(server, at); err != nil {
		return "", fmt.Errorf("bind: %w", err)
	}
	if err := unix.Listen(server, 1); err != nil {
		return "", fmt.Errorf("listen: %w", err)
	}
	client, err := unixSocket(a[0])
	if err != nil {
		return "", err
	}
	if err := connect(client, at); err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	peer, _, err := unix.Accept4(server, unix.SOCK_CLOEXEC)
	if err != nil {
		return "", fmt.Errorf("accept: %w", err)
	}
	return transfer(client, peer)
}

func unixOwnDatagram(a []string) (string, error) {
	server, err := unixSocket("dgram")
	if err != nil {
		return "", err
	}
	at := unixAddress(a[0])
	if err := bind(server, at); err != nil {
		return "", fmt.Errorf("bind: %w", err)
	}
	by := map[string]send{"sendto": sendtoWith(0), "sendmsg": sendmsg, "sendmmsg": sendmmsg}[a[1]]
	client, err := unixSocket("dgram")
	if err != nil {
		return "", err
	}
	if err := by(client, at, []byte(mark)); err != nil {
		return "", fmt.Errorf("%s: %w", a[1], err)
	}
	return received(server)
}

// transfer sends the mark from one end to the other.
func transfer(from, to int) (string, error) {
	if _, err := unix.Write(from, []byte(mark)); err != nil {
		return "", fmt.Errorf("write: %w", err)
	}
	return received(to)
}

func received(fd int) (string, error) {
	buf := make([]byte, 64)
	n, err := unix.Read(fd, buf)
	if err == nil && string(buf[:n]) != mark {
		err = fmt.Errorf("got %q", buf[:n])
	}
	return "", err
}

func socketpair([]string) (string, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	return transfer(pair[0], pair[1])
}

// unixRights passes a descriptor of a file over a pair and reads it there.
func unixRights(a []string) (string, error) {
	f, err := unix.Open(a[0], unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	if err := unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(f), nil, 0); err != nil {
		return "", fmt.Errorf("sendmsg: %w", err)
	}
	control := make([]byte, unix.CmsgSpace(4))
	if _, _, _, _, err = unix.Recvmsg(pair[1], make([]byte, 1), control, unix.MSG_CMSG_CLOEXEC); err != nil {
		return "", fmt.Errorf("recvmsg: %w", err)
	}
	msgs, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(msgs) != 1 {
		return "", fmt.Errorf("%d control messages: %w", len(msgs), err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return "", fmt.Errorf("%d descriptors: %w", len(fds), err)
	}
	return readFrom(fds[0], nil)
}
