package profiles

import "strings"

// configEntry is one variable of a configuration of git's. Section and key are in
// lower case, as they are the same in any.
type configEntry struct{ section, sub, key, value string }

// parseConfig reads a configuration of git's (git-config(1), "Syntax"). What it cannot
// read it leaves out: git fails there.
func parseConfig(text string) (entries []configEntry) {
	var section, sub string
	for text != "" {
		var line string
		line, text = configLine(text)
		line = strings.TrimLeft(line, " \t\r\ufeff")
		for strings.HasPrefix(line, "[") {
			if section, sub, line = configSection(line); section == "" {
				line = ""
			}
			line = strings.TrimLeft(line, " \t\r")
		}
		if line == "" || line[0] == '#' || line[0] == ';' || section == "" {
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		entries = append(entries, configEntry{section, sub, strings.ToLower(strings.TrimSpace(key)), configValue(value)})
	}
	return entries
}

// configLine cuts a line, together with those that continue it.
func configLine(text string) (line, rest string) {
	var b strings.Builder
	for {
		line, rest, _ = strings.Cut(text, "\n")
		line = strings.TrimSuffix(line, "\r")
		slashes := len(line) - len(strings.TrimRight(line, `\`))
		if slashes%2 == 0 || rest == "" {
			b.WriteString(line)
			return b.String(), rest
		}
		b.WriteString(line[:len(line)-1])
		text = rest
	}
}

// configSection reads the head of a section. The section is empty if that fails.
func configSection(line string) (section, sub, rest string) {
	name, quoted, found := strings.Cut(line[1:], `"`)
	end := strings.IndexByte(line, ']')
	if !found || end >= 0 && end < len(name)+1 {
		if end < 0 {
			return "", "", ""
		}
		section, sub, _ = strings.Cut(line[1:end], ".")
		return strings.ToLower(strings.TrimSpace(section)), sub, line[end+1:]
	}
	var b strings.Builder
	for i := 0; i < len(quoted); i++ {
		switch c := quoted[i]; {
		case c == '\\' && i+1 < len(quoted):
			i++
			b.WriteByte(quoted[i])
		case c == '"':
			rest, ok := strings.CutPrefix(strings.TrimLeft(quoted[i+1:], " \t"), "]")
			if !ok {
				return "", "", ""
			}
			return strings.ToLower(strings.TrimSpace(name)), b.String(), rest
		default:
			b.WriteByte(c)
		}
	}
	return "", "", ""
}

// configValue is a value without quotes, escapes, comment and space around it.
func configValue(s string) string {
	var b strings.Builder
	quoted, kept := false, 0
	s = strings.TrimLeft(s, " \t")
loop:
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			quoted = !quoted
			kept = b.Len()
			continue
		case c == '\\' && i+1 < len(s):
			i++
			switch s[i] {
			case 'n':
				b.WriteByte('\n')
			case 't':
				b.WriteByte('\t')
			case 'b':
				b.WriteByte('\b')
			default:
				b.WriteByte(s[i])
			}
			kept = b.Len()
		case !quoted && (c == '#' || c == ';'):
			break loop
		default:
			b.WriteByte(c)
			if quoted || c != ' ' && c != '\t' {
				kept = b.Len()
			}
		}
	}
	return b.String()[:kept]
}
