package profiles

import (
	"fmt"
	"strings"
	"unicode"

	"sandboxd/policy"
)

// show makes a path fit for one line of text.
func show(p string) string { return policy.Printable(p) }

// shellQuote makes s one word of a POSIX shell, for hints that can be pasted.
// Text that a terminal should not print raw takes the $'...' form.
func shellQuote(s string) string {
	if policy.Printable(s) != s {
		return dollarQuote(s)
	}
	if s != "" && strings.IndexFunc(s, needsQuote) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func needsQuote(c rune) bool {
	return !unicode.IsLetter(c) && !unicode.IsDigit(c) && !strings.ContainsRune("/._-+:@%,", c)
}

func dollarQuote(s string) string {
	var b strings.Builder
	b.WriteString("$'")
	for _, c := range []byte(s) {
		switch {
		case c == '\'' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('\'')
	return b.String()
}

// nearest returns the word of known that is closest to got, if one is close
// enough to be what was meant.
func nearest(got string, known []string) string {
	best, least := "", len(got)/2+2
	for _, k := range known {
		if d := distance(got, k); d < least {
			best, least = k, d
		}
	}
	return best
}

// distance is the number of single-byte edits between a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

// maxShown is how much of a name from a file a message repeats.
const maxShown = 80

// shorten cuts a name that is longer than anybody means.
func shorten(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return strings.ToValidUTF8(s[:maxShown], "") + "…"
}
