package terminal

import (
	"io"
	"os"

	"golang.org/x/sys/unix"

	"sandboxd/internal/stream"
)

// Remote is a worker's terminal whose keys and screen are another process', behind
// pipes. It is as a new terminal is: it echoes, and Ctrl-D is a key like others.
type Remote struct {
	// Output copies what the worker writes to the screen. Its worker's end is
	// Output.Worker.
	Output *stream.Tap
	master *os.File
	keys   *os.File
}

// NewRemote makes one of so many lines and columns. Its end closes neither keys nor
// screen; keys must be a pipe that is not blocking.
func NewRemote(rows, cols uint16, keys, screen *os.File) (*Remote, error) {
	master, worker, err := open()
	if err != nil {
		return nil, err
	}
	r := &Remote{master: master, keys: keys}
	if err := r.Resize(rows, cols); err != nil {
		_ = master.Close()
		_ = worker.Close()
		return nil, err
	}
	r.Output = stream.NewTerminalTap(master, worker, screen)
	return r, nil
}

// Start begins to pass on what is typed, until keys or the terminal is closed. The
// end of keys only says that nobody types any more.
func (r *Remote) Start() {
	go func() {
		// Without what package os does for its own files: it would hold more memory.
		_, _ = io.CopyBuffer(struct{ io.Writer }{r.master}, struct{ io.Reader }{r.keys}, make([]byte, 1024))
	}()
}

// Resize sets the size. The kernel tells the worker (SIGWINCH) if it has changed. It
// fails once the worker has ended.
func (r *Remote) Resize(rows, cols uint16) error {
	return control(r.master, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
}
