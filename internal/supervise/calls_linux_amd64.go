package supervise

import "golang.org/x/sys/unix"

// The calls that newer architectures have in their "at" form only.
func init() {
	handlers[unix.SYS_OPEN] = handler{"open", func(c *call) (int64, error) {
		return c.open(c.n.Args[0], int(int32(c.n.Args[1])), uint32(c.n.Args[2]))
	}}
	handlers[unix.SYS_LINK] = handler{"link", func(c *call) (int64, error) { return c.link(c.n.Args[0], c.n.Args[1]) }}
	handlers[unix.SYS_UNLINK] = handler{"unlink", func(c *call) (int64, error) { return c.unlink(c.n.Args[0]) }}
}
