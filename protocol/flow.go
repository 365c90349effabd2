package protocol

// Stream counts one stream of a launch, on either side: what was granted, how
// far it is, and whether it has ended. It is for one goroutine at a time.
type Stream struct {
	granted, offset int64
	ended           bool
}

// Grant adds credit: that which a peer sent, or that which is sent to it.
func (s *Stream) Grant(bytes int64) error {
	if bytes < 0 || s.granted-s.offset+bytes > MaxWindow {
		return Errorf(FlowControl, "more than %d bytes would be granted at once", MaxWindow)
	}
	s.granted += bytes
	return nil
}

// Room is how many bytes the next chunk may hold. 0 waits for credit.
func (s *Stream) Room() int { return int(min(MaxChunk, s.granted-s.offset)) }

// Offset is how many bytes there were: the next chunk's offset.
func (s *Stream) Offset() int64 { return s.offset }

// Ended tells that the chunk with the stream's end was there.
func (s *Stream) Ended() bool { return s.ended }

// Advance counts a chunk: one that was received, to be checked, or one that is
// sent. An error says what is wrong with it, and nothing was counted.
func (s *Stream) Advance(offset int64, bytes int, eof bool) error {
	switch {
	case s.ended:
		return Errorf(BadOffset, "the stream has ended at %d", s.offset).under("offset")
	case offset != s.offset:
		return Errorf(BadOffset, "begins at %d; the stream is at %d", offset, s.offset).under("offset")
	case bytes > MaxChunk || int64(bytes) > s.granted-s.offset:
		return Errorf(FlowControl, "%d bytes at once, where %d may be sent", bytes, s.Room())
	}
	s.offset += int64(bytes)
	s.ended = eof
	return nil
}

// InFlight is the set of ids of requests that have no final answer yet, on one
// connection. It is for one goroutine at a time.
type InFlight struct{ ids map[int64]bool }

// Open takes an id for a request, or says why not.
func (f *InFlight) Open(id int64) error {
	switch {
	case f.ids[id]:
		return Errorf(IDInUse, "request %d is in flight", id).under("id")
	case len(f.ids) >= MaxRequests:
		return Errorf(TooManyRequests, "%d requests are in flight", len(f.ids))
	}
	if f.ids == nil {
		f.ids = map[int64]bool{}
	}
	f.ids[id] = true
	return nil
}

// Has tells whether a request with the id is in flight. A mistake in a second
// one is answered with "id-in-use", whatever it is, so that nobody takes the
// answer for the first one's.
func (f *InFlight) Has(id int64) bool { return f.ids[id] }

// Close gives an id back, with the request's final answer.
func (f *InFlight) Close(id int64) { delete(f.ids, id) }

// Len is how many requests are in flight.
func (f *InFlight) Len() int { return len(f.ids) }
