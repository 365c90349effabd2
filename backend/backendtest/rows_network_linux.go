package backendtest

import "sandboxd/policy"

// networkRows attempt every kind of socket that is not AF_UNIX.
func networkRows() []Row {
	tcp := func(name, op string) Row { return deny(21, policy.NetTCPConnect, name, op, "EACCES") }
	bind := func(name, op string) Row { return deny(21, policy.NetTCPBind, name, op, "EACCES") }
	udp := func(name, op string) Row { return deny(21, policy.NetUDP, name, op, "EACCES") }
	raw := func(name, op string) Row {
		return deny(21, policy.NetRaw, name, op, "EACCES|EAFNOSUPPORT").needing("CAP_NET_RAW")
	}
	other := func(name, op string) Row { return deny(21, policy.NetOther, name, op, "EAFNOSUPPORT") }
	netlink := func(name, op string) Row { return deny(21, policy.NetOther, name, op, "EPROTONOSUPPORT") }
	return []Row{
		tcp("tcp connect", "tcp-connect {tcp4} {token}"),
		tcp("tcp connect v6", "tcp-connect {tcp6} {token}").needing("IPv6"),
		tcp("tcp connect with fast open", "tcp-fastopen {tcp4} {token}"),
		deny(22, policy.NetTCPConnect, "tcp connect to a mapped address", "tcp-connect [::ffff:127.0.0.1]:{tcp4port} {token}", "EACCES").needing("IPv6"),
		deny(22, policy.NetTCPConnect, "tcp connect to 0.0.0.0", "tcp-connect 0.0.0.0:{tcp4port} {token}", "EACCES"),
		deny(22, policy.NetTCPConnect, "tcp connect to [::]", "tcp-connect [::]:{tcp6port} {token}", "EACCES").needing("IPv6"),
		bind("tcp bind", "tcp-bind 127.0.0.1:0"),
		bind("tcp bind v6", "tcp-bind [::1]:0").needing("IPv6"),
		bind("tcp listen", "tcp-listen 127.0.0.1:0"),
		bind("tcp listen without bind", "tcp-listen-unbound"),
		deny(21, policy.NetOther, "multipath tcp connect", "mptcp-connect {tcp4} {token}", "EACCES").needing("MPTCP"),
		deny(21, policy.NetOther, "sctp socket", "socket 2 1 132", "EACCES").naturally("EPROTONOSUPPORT|ESOCKTNOSUPPORT"),
		deny(21, policy.NetOther, "dccp socket", "socket 2 6 33", "EACCES").naturally("EPROTONOSUPPORT|ESOCKTNOSUPPORT"),
		deny(21, policy.NetOther, "smc socket", "socket 43 1 0", "EAFNOSUPPORT").needing("CONFIG_SMC"),

		udp("udp connect and send", "udp-connect {udp4} {token}"),
		udp("udp connect and send v6", "udp-connect {udp6} {token}").needing("IPv6"),
		udp("udp sendto", "udp-sendto {udp4} {token}"),
		udp("udp sendto v6", "udp-sendto {udp6} {token}").needing("IPv6"),
		udp("udp sendmsg", "udp-sendmsg {udp4} {token}"),
		udp("udp sendmmsg", "udp-sendmmsg {udp4} {token}"),
		udp("udp bind", "udp-bind 127.0.0.1:0"),
		udp("udp-lite socket", "socket 2 2 136").needing("UDP-Lite"),

		raw("icmp raw socket", "socket 2 3 1"),
		raw("icmp6 raw socket", "socket 10 3 58"),
		deny(21, policy.NetRaw, "icmp datagram socket", "socket 2 2 1", "EACCES").needing("net.ipv4.ping_group_range"),
		raw("packet socket", "socket 17 3 768"),
		raw("old packet socket", "socket 2 10 768"),
		raw("xdp socket", "socket 44 3 0"),
		other("vsock socket", "socket 40 1 0").needing("CONFIG_VSOCKETS"),
		other("alg socket", "socket 38 5 0").needing("CONFIG_CRYPTO_USER_API"),
		other("bluetooth socket", "socket 31 3 1").needing("CONFIG_BT"),
		other("can socket", "socket 29 3 1").needing("CONFIG_CAN"),
		other("key socket", "socket 15 3 2").needing("CONFIG_NET_KEY and CAP_NET_ADMIN"),
		other("tipc socket", "socket 30 1 0").needing("CONFIG_TIPC"),
		other("family with high bits", "socket 0x100000028 1 0").needing("CONFIG_VSOCKETS"),
		netlink("netlink uevent", "socket 16 3 15"),
		netlink("netlink audit", "socket 16 3 9").needing("CONFIG_AUDIT"),
		netlink("netlink netfilter", "socket 16 3 12").needing("CONFIG_NETFILTER"),
		netlink("netlink generic", "socket 16 3 16"),
		netlink("netlink sock_diag", "socket 16 3 4").needing("CONFIG_INET_DIAG"),
		allow(21, policy.NetOther, "netlink route lists interfaces", "netlink-interfaces"),
	}
}

// unixRows attempt to reach the sockets of host processes.
func unixRows() []Row {
	path := func(name, op string) Row { return deny(24, policy.NetUnixPath, name, op, "EACCES") }
	abstract := func(name, op string) Row { return deny(24, policy.NetUnixAbstract, name, op, "EPERM") }
	own := func(name, op string) Row { return allow(24, policy.NetUnixPath, name, op) }
	return []Row{
		path("host stream socket", "unix-connect stream {stream} {token}"),
		path("host datagram socket", "unix-connect dgram {dgram} {token}"),
		path("host seqpacket socket", "unix-connect seqpacket {seqpacket} {token}"),
		path("host datagram socket by sendto", "unix-sendto {dgram} {token}"),
		path("host datagram socket by sendmsg", "unix-sendmsg {dgram} {token}"),
		path("host datagram socket by sendmmsg", "unix-sendmmsg {dgram} {token}"),
		path("host stream socket by ..", "unix-connect stream ../host/stream {token}"),
		path("host stream socket through a symlink", "unix-connect stream {mine}/streamlink {token}"),
		path("host datagram socket through a symlink", "unix-sendto {mine}/dgramlink {token}"),
		path("host stream socket by /proc/self/root", "unix-connect stream /proc/self/root{stream} {token}"),
		path("host stream socket in the workspace", "unix-connect stream {wsstream} {token}"),
		path("host datagram socket in the workspace", "unix-sendto {wsdgram} {token}"),
		path("host stream socket through a hard link", "unix-connect stream {mine}/streamhard {token}"),
		alike(24, policy.NetUnixPath, "host stream socket with a long address", "unix-long-address {stream}"),
		alike(24, policy.NetUnixPath, "socket that does not exist", "unix-connect stream {mine}/nobody {token}"),
		alike(24, policy.NetUnixPath, "socket that is a file", "unix-connect stream {mine}/file {token}"),
		alike(24, policy.NetUnixPath, "socket in no directory", "unix-connect stream {mine}/nobody/s {token}"),
		alike(24, policy.NetUnixPath, "socket below a file", "unix-connect stream {mine}/file/s {token}"),
		abstract("abstract stream socket", "unix-connect stream {abstream} {token}"),
		abstract("abstract seqpacket socket", "unix-connect seqpacket {abseqpacket} {token}"),
		abstract("abstract datagram socket", "unix-connect dgram {abdgram} {token}"),
		abstract("abstract datagram socket by sendto", "unix-sendto {abdgram} {token}"),
		abstract("abstract datagram socket by sendmsg", "unix-sendmsg {abdgram} {token}"),
		abstract("abstract datagram socket by sendmmsg", "unix-sendmmsg {abdgram} {token}"),

		work(24, "own stream socket", "unix-own stream {mine}/s", "EACCES"),
		work(24, "own seqpacket socket", "unix-own seqpacket {mine}/s", "EACCES"),
		work(24, "own relative socket", "unix-own stream own-{token}", "EACCES"),
		work(24, "own datagram socket by sendto", "unix-own-dgram {mine}/s sendto", "EACCES"),
		work(24, "own datagram socket by sendmsg", "unix-own-dgram {mine}/s sendmsg", "EACCES"),
		work(24, "own datagram socket by sendmmsg", "unix-own-dgram {mine}/s sendmmsg", "EACCES"),
		own("own abstract stream socket", "unix-own stream @{unique}-{token}"),
		own("own abstract datagram socket", "unix-own-dgram @{unique}-{token} sendto"),
		allow(23, policy.NetUnixPath, "socketpair", "socketpair"),
		allow(23, policy.NetUnixPath, "pass a descriptor", "unix-rights {mine}/file"),
	}
}
