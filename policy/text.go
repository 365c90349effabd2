package policy

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// Raw is a byte string that the system gave us (a path, an argument, a
// variable) and that need not be UTF-8. In JSON it is a string where it is
// valid UTF-8 and {"base64": "..."} where it is not, so that nothing is lost
// and nothing is silently replaced.
type Raw string

type rawBytes struct {
	Base64 string `json:"base64"`
}

// MarshalJSON implements json.Marshaler.
func (r Raw) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(r)) {
		return json.Marshal(string(r))
	}
	return json.Marshal(rawBytes{base64.StdEncoding.EncodeToString([]byte(r))})
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *Raw) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		*r = Raw(s)
		return nil
	}
	var enc rawBytes
	if err := json.Unmarshal(b, &enc); err != nil {
		return fmt.Errorf("want a string or {\"base64\": ...}: %w", err)
	}
	raw, err := base64.StdEncoding.DecodeString(enc.Base64)
	if err != nil {
		return fmt.Errorf("decoding base64: %w", err)
	}
	*r = Raw(raw)
	return nil
}

// String returns the text as it may be shown on a terminal: see [Printable].
func (r Raw) String() string { return Printable(string(r)) }

// Printable escapes what could steer a terminal or forge a line: control
// characters, invalid UTF-8 and the invisible Unicode formatting characters
// (among them the bidirectional overrides). Text that needs no escape is
// returned unchanged; other text is quoted as a Go string.
func Printable(s string) string {
	for _, c := range s {
		if c == utf8.RuneError || !unicode.IsPrint(c) {
			return strconv.QuoteToGraphic(s)
		}
	}
	return s
}
