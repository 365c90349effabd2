package proxy

import (
	"bufio"
	"errors"
	"io"
	"strconv"
	"strings"
)

// errBody is a body that does not keep to its framing.
var errBody = errors.New("the body's chunks are malformed")

// body reads a message's body to its end, where it gives io.EOF. A body that ends
// early gives io.ErrUnexpectedEOF.
func (f framing) body(r *bufio.Reader) io.Reader {
	switch {
	case f.chunked:
		return &chunks{r: r}
	case f.length >= 0:
		return &exactly{r: r, left: f.length}
	}
	return r
}

// exactly reads so many bytes.
type exactly struct {
	r    io.Reader
	left int64
}

func (e *exactly) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.left)])
	e.left -= int64(n)
	if errors.Is(err, io.EOF) && e.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Limits of what is thrown away: the extensions of a chunk (in its line), and the
// trailer section (RFC 9112, 7.1.1 and 7.1.2), in bytes.
const (
	maxChunkLine = 1 << 10
	maxTrailer   = 16 << 10
)

// chunks reads a chunked body and gives what is in the chunks. Extensions and
// trailers are not handed on, as a recipient may decide (RFC 9110, 6.5.1).
type chunks struct {
	r    *bufio.Reader
	left int64 // of the chunk
	open bool  // in a chunk, whose CR LF is not read yet
	err  error // how it ended
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for c.err == nil && c.left == 0 {
		c.err = c.next()
	}
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	if err != nil {
		c.err = unexpected(err)
	}
	return n, c.err
}

// next goes to the next chunk, or to the end.
func (c *chunks) next() error {
	if c.open {
		if line, err := readLine(c.r, 2); err != nil || line != "" {
			return chunkError(err)
		}
	}
	line, err := readLine(c.r, maxChunkLine)
	if err != nil {
		return chunkError(err)
	}
	size, extensions, _ := strings.Cut(line, ";")
	size = strings.TrimRight(size, " \t") // bad whitespace, which precedes an extension
	if extensions == "" && len(size) != len(line) {
		return errBody
	}
	if strings.Trim(size, "0123456789abcdefABCDEF") != "" {
		return errBody // ParseInt takes signs, too
	}
	if c.left, err = strconv.ParseInt(size, 16, 64); err != nil || c.left > maxLength {
		return errBody
	}
	c.open = true
	if c.left > 0 {
		return nil
	}
	for total := 0; ; {
		line, err := readLine(c.r, maxTrailer)
		if err != nil {
			return chunkError(err)
		}
		if line == "" {
			return io.EOF
		}
		if total += len(line); total > maxTrailer {
			return errBody
		}
		if _, err := parseField(line); err != nil {
			return errBody
		}
	}
}

// chunkError tells a malformed body from a connection that failed.
func chunkError(err error) error {
	if err == nil || errors.Is(err, errLineEnd) || errors.Is(err, errLineTooLong) {
		return errBody
	}
	return unexpected(err)
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// sendBody writes a body, in chunks if asked to, and tells whether what failed was
// the reading of it.
func sendBody(w io.Writer, r io.Reader, chunked bool, count func(int)) (reading bool, err error) {
	buf := buffers.Get().(*[copyBuffer]byte)
	defer buffers.Put(buf)
	const room = 8 // for the line before and the CR LF behind
	for {
		n, err := r.Read(buf[room : copyBuffer-2])
		if n > 0 {
			out := buf[room : room+n]
			if chunked {
				line := strconv.AppendInt(nil, int64(n), 16)
				start := room - len(line) - 2
				copy(buf[start:], line)
				copy(buf[start+len(line):], "\r\n")
				copy(buf[room+n:], "\r\n")
				out = buf[start : room+n+2]
			}
			if _, err := w.Write(out); err != nil {
				return false, err
			}
			count(n)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return true, err
		}
	}
	if chunked {
		_, err = io.WriteString(w, "0\r\n\r\n")
	}
	return false, err
}
