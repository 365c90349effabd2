package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Limits of a head, of a request as of a response, in bytes but for the last.
const (
	maxLine   = 16 << 10
	maxHead   = 64 << 10
	maxFields = 256
)

var (
	errLineTooLong = errors.New("a line is too long")
	errHeadTooLong = errors.New("the head is too long")
	errLineEnd     = errors.New("a line does not end with CR LF")
)

// readLine reads a line and gives it without its CR LF. A bare LF or CR ends no
// line: what one reader takes for one line, another would take for two.
func readLine(r *bufio.Reader, most int) (string, error) {
	var long []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(long)+len(part) > most {
			return "", errLineTooLong
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long, part...)
			continue
		}
		if err != nil {
			if len(long)+len(part) > 0 && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return "", err
		}
		line, ok := bytes.CutSuffix(append(long, part...), []byte("\r\n"))
		if !ok || bytes.IndexByte(line, '\r') >= 0 {
			return "", errLineEnd
		}
		return string(line), nil
	}
}

// field is one header field, its name as it was written, its value trimmed.
type field struct{ name, value string }

// head is what stands before a body: a first line and fields.
type head struct {
	first  string
	fields []field
}

// readHead reads a head. An empty line before it is skipped (RFC 9112, 2.2).
func readHead(r *bufio.Reader) (head, error) {
	var h head
	total := 0
	for skipped := false; ; skipped = true {
		line, err := readLine(r, maxLine)
		if err != nil {
			return h, err
		}
		if line != "" || skipped {
			h.first, total = line, len(line)
			break
		}
	}
	for {
		line, err := readLine(r, maxLine)
		switch {
		case errors.Is(err, errLineTooLong):
			return h, errHeadTooLong
		case errors.Is(err, io.EOF):
			return h, io.ErrUnexpectedEOF
		case err != nil:
			return h, err
		case line == "":
			return h, nil
		}
		if total += len(line); total > maxHead || len(h.fields) == maxFields {
			return h, errHeadTooLong
		}
		f, err := parseField(line)
		if err != nil {
			return h, err
		}
		h.fields = append(h.fields, f)
	}
}

// parseField reads a field's line (RFC 9112, 5): no space before the colon, and no
// continuation of the line before (obs-fold).
func parseField(line string) (field, error) {
	if line[0] == ' ' || line[0] == '\t' {
		return field{}, errors.New("a header field is folded")
	}
	name, value, ok := strings.Cut(line, ":")
	if !ok || !httpguts.ValidHeaderFieldName(name) {
		return field{}, errors.New("a header field has no valid name")
	}
	if value = strings.Trim(value, " \t"); !httpguts.ValidHeaderFieldValue(value) {
		return field{}, errors.New("a header field holds control characters")
	}
	return field{name, value}, nil
}

// values are those of all fields of a name.
func (h head) values(name string) []string {
	var all []string
	for _, f := range h.fields {
		if strings.EqualFold(f.name, name) {
			all = append(all, f.value)
		}
	}
	return all
}

// has tells whether a token is in a comma-separated field.
func (h head) has(name, token string) bool {
	return httpguts.HeaderValuesContainsToken(h.values(name), token)
}

// hopByHop are the fields that are for one connection only (RFC 9110, 7.6.1), and
// those that are written anew. Fields named Proxy-* are removed as well.
var hopByHop = []string{"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "content-length", "host"}

// endToEnd gives the fields that are handed on: without those for this connection,
// and those that the sender names as such.
func (h head) endToEnd() []field {
	var own []string
	for _, v := range h.values("connection") {
		for token := range strings.SplitSeq(v, ",") {
			own = append(own, lower(strings.Trim(token, " \t")))
		}
	}
	var kept []field
next:
	for _, f := range h.fields {
		name := lower(f.name)
		if strings.HasPrefix(name, "proxy-") {
			continue
		}
		for _, list := range [][]string{hopByHop, own} {
			for _, n := range list {
				if n == name {
					continue next
				}
			}
		}
		kept = append(kept, f)
	}
	return kept
}

// framing is how long a body is.
type framing struct {
	length  int64 // -1 if no Content-Length says it
	chunked bool
}

// maxLength keeps lengths far from the end of an int64.
const maxLength = 1 << 60

// frame reads a message's framing (RFC 9112, 6). What could be read in two ways is
// an error: a length beside a transfer coding, several lengths, even equal ones, and
// every coding but "chunked".
func (h head) frame(minor int) (framing, error) {
	lengths, codings := h.values("content-length"), h.values("transfer-encoding")
	switch {
	case len(lengths) > 1 || len(codings) > 1:
		return framing{}, errors.New("the length of the body is given more than once")
	case len(lengths) > 0 && len(codings) > 0:
		return framing{}, errors.New("the body has a Content-Length and a Transfer-Encoding")
	case len(codings) == 1:
		if !strings.EqualFold(codings[0], "chunked") || minor == 0 {
			return framing{}, fmt.Errorf("the Transfer-Encoding %q is not one that is handed on", clip(codings[0]))
		}
		return framing{length: -1, chunked: true}, nil
	case len(lengths) == 0:
		return framing{length: -1}, nil
	}
	n, err := strconv.ParseUint(lengths[0], 10, 63)
	if err != nil || n > maxLength {
		return framing{}, errors.New("the Content-Length is no number")
	}
	return framing{length: int64(n)}, nil
}

// request is a request that can be judged and handed on.
type request struct {
	head
	method  string
	minor   int // of the version HTTP/1
	host    host
	port    uint16
	path    string // with the query; "" for CONNECT
	body    framing
	upgrade bool // to a WebSocket
}

// hasBody tells whether a body follows.
func (q *request) hasBody() bool { return q.body.chunked || q.body.length > 0 }

// last tells whether the client wants no other request on the connection.
func (q *request) last() bool { return q.minor == 0 || q.has("connection", "close") }

func bad(reason Reason, format string, args ...any) *failure {
	return &failure{reason: reason, text: fmt.Sprintf(format, args...)}
}

// parseRequest judges a request's form. asked is the target's authority as it was
// written, as far as there is one, for events.
func parseRequest(h head) (q *request, asked string, f *failure) {
	method, rest, ok := strings.Cut(h.first, " ")
	target, version, ok2 := strings.Cut(rest, " ")
	if !ok || !ok2 || len(method) > 32 || !httpguts.ValidHeaderFieldName(method) || target == "" {
		return nil, "", bad(BadRequest, "the request line is malformed")
	}
	q = &request{head: h, method: method}
	switch version {
	case "HTTP/1.1":
		q.minor = 1
	case "HTTP/1.0":
	default:
		if strings.HasPrefix(version, "HTTP/") && strings.IndexByte(version, ' ') < 0 {
			return nil, "", bad(VersionUnknown, "the proxy speaks HTTP/1.1 and 1.0")
		}
		return nil, "", bad(BadRequest, "the request line is malformed")
	}
	for i := 0; i < len(target); i++ {
		if c := target[i]; c <= ' ' || c == 0x7f {
			return nil, "", bad(BadRequest, "a control character is in the target")
		}
	}
	if method == "CONNECT" {
		asked = target
	} else if asked, q.path, f = splitTarget(method, target); f != nil {
		return nil, asked, f
	}
	var err error
	if strings.IndexByte(asked, '@') >= 0 {
		return nil, asked, bad(BadHost, "a user is named before the host")
	}
	if q.host, q.port, err = parseAuthority(asked); err != nil {
		return nil, asked, &failure{reason: BadHost, text: err.Error()}
	}
	if q.port == 0 {
		if method == "CONNECT" {
			return nil, asked, bad(BadRequest, "CONNECT needs a port")
		}
		q.port = 80
	}
	if f := q.checkHost(); f != nil {
		return nil, asked, f
	}
	if q.body, err = h.frame(q.minor); err != nil {
		return nil, asked, bad(BadRequest, "%v", err)
	}
	if method == "CONNECT" && q.hasBody() {
		return nil, asked, bad(BadRequest, "CONNECT has a body")
	}
	q.upgrade = method == "GET" && q.minor == 1 && !q.hasBody() && q.has("connection", "upgrade") && q.has("upgrade", "websocket")
	return q, asked, nil
}

// splitTarget takes a target in absolute form apart (RFC 9112, 3.2.2).
func splitTarget(method, target string) (authority, path string, f *failure) {
	scheme, rest, ok := strings.Cut(target, "://")
	switch {
	case target[0] == '/' || target == "*":
		return "", "", bad(BadRequest, "this is a proxy: the target must be a whole URL")
	case !ok || strings.ContainsAny(scheme, "/?#@\\"):
		return "", "", bad(BadRequest, "the target is no URL")
	case strings.EqualFold(scheme, "https"):
		return "", "", bad(Unsupported, "an https URL is asked for by CONNECT")
	case !strings.EqualFold(scheme, "http"):
		return "", "", bad(Unsupported, "the proxy fetches http URLs only")
	case strings.IndexByte(rest, '#') >= 0:
		return "", "", bad(BadRequest, "the target has a fragment")
	}
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	authority, path = rest[:end], rest[end:]
	switch {
	case path == "" && method == "OPTIONS":
		path = "*" // RFC 9112, 3.2.4
	case path == "" || path[0] == '?':
		path = "/" + path
	}
	return authority, path, nil
}

// checkHost compares the field Host with the target. A proxy may ignore it (RFC
// 9112, 3.2.2), but who sends two names means to be understood in two ways. A
// tunnel's Host is often without the port, and sometimes not there at all.
func (q *request) checkHost() *failure {
	hosts := q.values("host")
	switch {
	case len(hosts) > 1:
		return bad(BadRequest, "there is more than one Host")
	case len(hosts) == 0 && q.minor == 1 && q.method != "CONNECT":
		return bad(BadRequest, "there is no Host")
	case len(hosts) == 0:
		return nil
	}
	h, port, err := parseAuthority(hosts[0])
	if err == nil && port == 0 {
		if port = 80; q.method == "CONNECT" {
			port = q.port
		}
	}
	if err != nil || h != q.host || port != q.port {
		return bad(HostMismatch, "the Host %q is not that of the target", clip(hosts[0]))
	}
	return nil
}

// authority is the Host that is sent to the host.
func (q *request) authority() string {
	if q.port == 80 {
		return q.host.authority()
	}
	return q.host.authority() + ":" + strconv.Itoa(int(q.port))
}

// via is the field that a proxy has to add (RFC 9110, 7.6.3). It tells nothing of
// where the proxy runs.
const via = "1.1 sbx"

// encode is the request as it is sent to its host.
func (q *request) encode() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", q.method, q.path, q.authority())
	writeFields(&b, q.endToEnd())
	switch {
	case q.body.chunked:
		b.WriteString("Transfer-Encoding: chunked\r\n")
	case q.body.length >= 0:
		fmt.Fprintf(&b, "Content-Length: %d\r\n", q.body.length)
	}
	if q.upgrade {
		b.WriteString("Connection: Upgrade\r\nUpgrade: websocket\r\n")
	}
	b.WriteString("Via: " + via + "\r\n\r\n")
	return b.Bytes()
}

func writeFields(b *bytes.Buffer, fields []field) {
	for _, f := range fields {
		b.WriteString(f.name + ": " + f.value + "\r\n")
	}
}

// response is a host's response.
type response struct {
	head
	minor  int
	status int
	title  string
	body   framing
}

// readResponse reads the head of a response.
func readResponse(r *bufio.Reader) (*response, error) {
	h, err := readHead(r)
	if err != nil {
		return nil, err
	}
	version, rest, _ := strings.Cut(h.first, " ")
	code, title, _ := strings.Cut(rest, " ")
	p := &response{head: h, title: title}
	switch version {
	case "HTTP/1.1":
		p.minor = 1
	case "HTTP/1.0":
	default:
		return nil, errors.New("it is no response of HTTP/1")
	}
	n, err := strconv.ParseUint(code, 10, 16)
	if err != nil || len(code) != 3 || n < 100 || n > 599 || !httpguts.ValidHeaderFieldValue(title) {
		return nil, errors.New("the status line is malformed")
	}
	p.status = int(n)
	p.body, err = h.frame(p.minor)
	return p, err
}

// bodiless tells whether no body follows, whatever the fields say (RFC 9112, 6.3).
func (p *response) bodiless(method string) bool {
	return method == "HEAD" || p.status < 200 || p.status == 204 || p.status == 304
}
