package main

import "strings"

// compareVersions orders Debian package versions as deb-version(7) says.
// Versions of kernels have no epoch, and the revision follows the last dash.
func compareVersions(a, b string) int {
	upA, revA := splitRevision(a)
	upB, revB := splitRevision(b)
	if c := compareParts(upA, upB); c != 0 {
		return c
	}
	return compareParts(revA, revB)
}

func splitRevision(v string) (upstream, revision string) {
	if i := strings.LastIndexByte(v, '-'); i >= 0 {
		return v[:i], v[i+1:]
	}
	return v, ""
}

// compareParts compares stretches without and with digits in turn: the former
// by [weight], the latter as numbers.
func compareParts(a, b string) int {
	for a != "" || b != "" {
		for a != "" && !digit(a[0]) || b != "" && !digit(b[0]) {
			if d := weight(a) - weight(b); d != 0 {
				return sign(d)
			}
			a, b = rest(a), rest(b)
		}
		var na, nb string
		na, a = number(a)
		nb, b = number(b)
		if d := len(na) - len(nb); d != 0 {
			return sign(d)
		}
		if c := strings.Compare(na, nb); c != 0 {
			return c
		}
	}
	return 0
}

// weight of the first byte: "~" sorts before everything, even the end; letters
// sort before the other characters.
func weight(s string) int {
	switch {
	case s == "" || digit(s[0]):
		return 0
	case s[0] == '~':
		return -1
	case s[0] >= 'A' && s[0] <= 'Z' || s[0] >= 'a' && s[0] <= 'z':
		return int(s[0])
	}
	return int(s[0]) + 256
}

func rest(s string) string {
	if s == "" || digit(s[0]) {
		return s
	}
	return s[1:]
}

// number cuts the digits at the start, without leading zeros.
func number(s string) (digits, rest string) {
	i := 0
	for i < len(s) && digit(s[i]) {
		i++
	}
	return strings.TrimLeft(s[:i], "0"), s[i:]
}

func digit(b byte) bool { return b >= '0' && b <= '9' }

func sign(n int) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}
