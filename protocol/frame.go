package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	prefix = 4
	// firstStep is how much memory a prefix alone can claim. It grows with what
	// arrives, so that a peer that announces much has to send much.
	firstStep = 4 << 10
	// kept is the largest buffer that stays between frames.
	kept = 64 << 10
)

// Reader reads frames. It never reads beyond the frame that it returns: what
// the underlying reader received beside the bytes (descriptors) belongs to it.
type Reader struct {
	r   io.Reader
	max int
	buf []byte
}

// NewReader reads frames of at most max bytes, the prefix not counted:
// [MaxFrame] for a daemon, [MaxAnswer] for a client.
func NewReader(r io.Reader, max int) *Reader { return &Reader{r: r, max: max} }

// ReadFrame returns the next frame without its prefix; it is valid until the
// next call. At the end, between two frames, the error is io.EOF. A frame that
// is empty, too long or cut off is an [*Error]; after any error the stream
// cannot be read on.
func (r *Reader) ReadFrame() ([]byte, error) {
	var head [prefix]byte
	if n, err := io.ReadFull(r.r, head[:]); err != nil {
		return nil, readError(err, n)
	}
	length := binary.BigEndian.Uint32(head[:])
	switch {
	case length == 0:
		return nil, Errorf(FrameEmpty, "a frame of length 0")
	case uint64(length) > uint64(r.max):
		return nil, Errorf(FrameTooLarge, "a frame of %d bytes; at most %d are read", length, r.max)
	}
	want, got := int(length), 0
	buf := r.buf[:min(cap(r.buf), want)]
	for got < want {
		if got == len(buf) {
			grown := make([]byte, min(want, max(firstStep, 2*got)))
			copy(grown, buf)
			buf = grown
		}
		n, err := io.ReadFull(r.r, buf[got:])
		got += n
		if err != nil {
			return nil, readError(err, prefix+got)
		}
	}
	if cap(buf) <= kept { // else a connection that waits would hold it
		r.buf = buf
	}
	return buf, nil
}

// readError tells the end between two frames from one in the middle.
func readError(err error, got int) error {
	switch {
	case got == 0 && errors.Is(err, io.EOF):
		return io.EOF
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return Errorf(Truncated, "the peer stopped sending in the middle of a frame, after %d bytes", got)
	}
	return fmt.Errorf("reading a frame: %w", err)
}

// Writer writes frames, each in one call of the underlying writer. It is for
// one goroutine at a time.
type Writer struct {
	w   io.Writer
	max int
	buf []byte
}

// NewWriter writes frames of at most max bytes, the prefix not counted:
// [MaxAnswer] for a daemon, what the daemon's hello says for a client.
func NewWriter(w io.Writer, max int) *Writer { return &Writer{w: w, max: max} }

// Write encodes a message and writes its frame. What cannot be encoded, or is
// too long, is an [*Error], and nothing was written.
func (w *Writer) Write(m Message) error {
	frame, err := AppendFrame(w.buf[:0], m, w.max)
	if err != nil {
		return err
	}
	if cap(frame) <= kept {
		w.buf = frame
	}
	if _, err := w.w.Write(frame); err != nil {
		return fmt.Errorf("writing a frame: %w", err)
	}
	return nil
}

// AppendFrame appends a message's frame to dst, prefix and all. A frame of more
// than max bytes (the prefix not counted) is an [*Error]. It is for who sends
// descriptors with the frame's first byte; others use a [Writer].
func AppendFrame(dst []byte, m Message, max int) ([]byte, error) {
	start := len(dst)
	dst, err := appendMessage(append(dst, 0, 0, 0, 0), m)
	if err != nil {
		return nil, err
	}
	n := len(dst) - start - prefix
	if n > max {
		return nil, Errorf(FrameTooLarge, "a frame of %d bytes; at most %d may be written", n, max)
	}
	binary.BigEndian.PutUint32(dst[start:], uint32(n))
	return dst, nil
}
