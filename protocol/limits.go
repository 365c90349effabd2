package protocol

// The limits. A daemon tells its own in its hello; none is greater than these
// but by a new version of the protocol.
const (
	// MaxFrame is the longest frame that a daemon reads, in bytes without the
	// prefix. It holds a command line and an environment that are far beyond the
	// usual; what is longer than a frame cannot be launched through the daemon.
	MaxFrame = 1 << 20
	// MaxAnswer is the longest frame that a daemon writes, in bytes without the
	// prefix. A report repeats the command line of its request and lists denied
	// paths, so that it can be several times as long as the request.
	MaxAnswer = 8 << 20
	// MaxDepth is how deep arrays and objects may be nested; the message itself
	// is the first.
	MaxDepth = 16
	// MaxString is the longest text or byte string, in bytes once it is decoded:
	// Linux executes no program with a longer argument (MAX_ARG_STRLEN).
	MaxString = 128 << 10
	// MaxItems is how many elements an array and members an object may have. It
	// is what xargs puts on one command line at most, a byte each.
	MaxItems = 64 << 10
	// MaxChunk is the most data of a stream in one message, in bytes before
	// base64. Other requests' answers wait behind one chunk, so it is short.
	MaxChunk = 32 << 10
	// MaxWindow is the most that may be granted on one stream and not yet used,
	// in bytes.
	MaxWindow = 16 << 20
	// MaxDescriptors is how many descriptors may come with one frame, the
	// standard ones included. Linux would carry 253 in one message.
	MaxDescriptors = 64
	// MaxDescriptor is the greatest number that a descriptor may have in a
	// worker, below the limit of open files that processes usually have.
	MaxDescriptor = 255
	// MaxRequests is how many requests may be in flight on one connection.
	MaxRequests = 64
	// MaxConnections is how many connections one user may have.
	MaxConnections = 32
	// MaxInteger is the greatest integer: the greatest one up to which every
	// JSON library, those that know only float64 included, tells neighbours apart.
	MaxInteger = 1<<53 - 1

	// maxJSONString is the longest JSON string, once its escapes are decoded: a
	// byte string of MaxString in base64.
	maxJSONString = (MaxString + 2) / 3 * 4
)

// Limits are a daemon's limits, as its hello tells them.
type Limits struct {
	// Longest frame that the daemon reads, in bytes without the prefix.
	Frame int64 `json:"frame_bytes"`
	// Longest frame that it writes.
	Answer int64 `json:"answer_bytes"`
	// How deep arrays and objects may be nested. The message itself is the first.
	Depth int64 `json:"depth"`
	// Longest text or byte string, decoded.
	String int64 `json:"string_bytes"`
	// Elements of an array, members of an object.
	Items int64 `json:"items"`
	// Most data in one `stdin` or `output`, before base64.
	Chunk int64 `json:"chunk_bytes"`
	// Most credit that may be open on one stream.
	Window int64 `json:"window_bytes"`
	// Descriptors with one frame.
	Descriptors int64 `json:"descriptors"`
	// Requests in flight on one connection.
	Requests int64 `json:"requests"`
	// Connections of one user.
	Connections int64 `json:"connections"`
}

// DefaultLimits are the constants of this package.
func DefaultLimits() Limits {
	return Limits{MaxFrame, MaxAnswer, MaxDepth, MaxString, MaxItems, MaxChunk, MaxWindow, MaxDescriptors, MaxRequests, MaxConnections}
}
