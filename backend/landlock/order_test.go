package landlock

import (
	"os"
	"regexp"
	"strconv"
	"testing"
)

// TestLaunchOrderIsDocumented: docs/launch-order.md and the code have the same
// numbered steps, each once, and the code's stand in rising order.
func TestLaunchOrderIsDocumented(t *testing.T) {
	inCode := map[int]string{}
	for _, file := range []string{"apply_linux.go", "../../internal/launch/launch_linux.go"} {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Skipf("the source is not here: %v", err)
		}
		for _, m := range regexp.MustCompile(`(?m)^\t+// (\d+)( to (\d+))?: `).FindAllStringSubmatch(string(src), -1) {
			first, _ := strconv.Atoi(m[1])
			last := first
			if m[3] != "" {
				last, _ = strconv.Atoi(m[3])
			}
			for n := first; n <= last; n++ {
				if old, dup := inCode[n]; dup {
					t.Errorf("step %d stands in %s and in %s", n, old, file)
				}
				inCode[n] = file
			}
		}
	}
	doc, err := os.ReadFile("../../docs/launch-order.md")
	if err != nil {
		t.Skipf("the documentation is not here: %v", err)
	}
	steps := regexp.MustCompile(`(?m)^(\d+)\. \*\*`).FindAllStringSubmatch(string(doc), -1)
	for i, m := range steps {
		n, _ := strconv.Atoi(m[1])
		if n != i+1 {
			t.Errorf("step %d of the document is numbered %d", i+1, n)
		}
		if inCode[n] == "" {
			t.Errorf("step %d is not in the code", n)
		}
		delete(inCode, n)
	}
	for n, file := range inCode {
		t.Errorf("step %d of %s is not in the document", n, file)
	}
}
