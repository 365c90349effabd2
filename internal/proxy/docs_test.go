package proxy

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestDocumented: the tests that the page names exist, and it has every reason.
func TestDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/network.md")
	if err != nil {
		t.Skipf("the page is not here: %v", err)
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil || len(files) == 0 {
		t.Skip("the sources are not here")
	}
	var sources []byte
	for _, f := range append(files, "../deptest/deps_test.go") {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, b...)
	}
	named := regexp.MustCompile("`((Test|Fuzz)[A-Za-z0-9]+)`").FindAllSubmatch(page, -1)
	if len(named) < 20 {
		t.Errorf("the page names %d tests", len(named))
	}
	for _, m := range named {
		if !bytes.Contains(sources, []byte("func "+string(m[1])+"(")) {
			t.Errorf("the page names %s, which is no test", m[1])
		}
	}
	for r := range answers {
		if !bytes.Contains(page, []byte("`"+string(r)+"`")) {
			t.Errorf("the page does not have the reason %s", r)
		}
	}
}
