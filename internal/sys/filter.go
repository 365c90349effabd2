package sys

// SockFilter is one BPF instruction: struct sock_filter of linux/filter.h.
type SockFilter struct {
	Code   uint16
	Jt, Jf uint8
	K      uint32
}
