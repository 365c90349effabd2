//go:build linux && (amd64 || arm64)

package nofile

// getrlimit is prlimit64(0, RLIMIT_NOFILE, nil, l); it returns 0, or a negated
// errno. The kernel writes two words there.
//
//go:noescape
func getrlimit(l *Limit) int64

func read() (l Limit, ok bool) {
	errno := getrlimit(&l)
	return l, errno == 0
}
