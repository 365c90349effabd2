// Command skipcheck reads `go test -json` and writes what `go test` would, then
// lists every test that skipped. With -strict a skip that is not in the list of
// allowed ones, with its reason, is a failure: a suite must not be green
// because it did not run.
//
//	go test -json ./... | skipcheck -strict -allow test/skips.txt
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// allowance lets tests skip, by name ("*" stands for anything), for a reason.
type allowance struct {
	pattern *regexp.Regexp
	reason  string
}

type allowances []allowance

func (all allowances) reason(test string) (string, bool) {
	for _, a := range all {
		if a.pattern.MatchString(test) {
			return a.reason, true
		}
	}
	return "", false
}

type event struct {
	Action, Package, Test, Output string
}

func main() {
	strict := flag.Bool("strict", os.Getenv("SBX_MUST_RUN") == "1", "fail on a skip that is not allowed")
	allow := flag.String("allow", "", "`files` of allowed skips, comma-separated: test name, white space, reason")
	verbose := flag.Bool("v", false, "print the output of tests that pass, too")
	flag.Parse()
	allowed, err := readAllowed(*allow)
	if err != nil {
		fmt.Fprintln(os.Stderr, "skipcheck:", err)
		os.Exit(2)
	}
	os.Exit(check(bufio.NewScanner(os.Stdin), allowed, *strict, *verbose))
}

func readAllowed(path string) (allowances, error) {
	if path == "" {
		return nil, nil
	}
	var text []byte
	for file := range strings.SplitSeq(path, ",") {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		text = append(text, b...)
	}
	var all allowances
	for line := range strings.Lines(string(text)) {
		name, reason, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "" || strings.HasPrefix(name, "#") {
			continue
		}
		if strings.TrimSpace(reason) == "" {
			return nil, fmt.Errorf("%s: %q has no reason", path, name)
		}
		pattern := strings.ReplaceAll(regexp.QuoteMeta(name), `\*`, ".*")
		all = append(all, allowance{regexp.MustCompile("^" + pattern + "$"), strings.TrimSpace(reason)})
	}
	return all, nil
}

func check(in *bufio.Scanner, allowed allowances, strict, verbose bool) int {
	in.Buffer(make([]byte, 1<<20), 1<<24)
	passed, failed, skipped, status := 0, 0, 0, 0
	output := map[string][]string{}
	for in.Scan() {
		var e event
		if err := json.Unmarshal(in.Bytes(), &e); err != nil {
			fmt.Println(in.Text()) // a build failure is plain text
			status = 1
			continue
		}
		key := e.Package + " " + e.Test
		switch e.Action {
		case "output", "build-output":
			if verbose || e.Test == "" {
				fmt.Print(e.Output)
			} else {
				output[key] = append(output[key], e.Output)
			}
		case "build-fail":
			status = 1
		case "pass":
			if e.Test != "" {
				passed++
			}
			delete(output, key)
		case "fail":
			status = 1
			if e.Test != "" {
				failed++
			}
			fmt.Print(strings.Join(output[key], ""))
			delete(output, key)
		case "skip":
			if e.Test == "" {
				continue // a package without tests
			}
			skipped++
			reason, ok := allowed.reason(e.Test)
			word := "SKIP"
			if strict && !ok {
				status, word = 1, "SKIP NOT ALLOWED"
			}
			fmt.Printf("%s %s.%s: %s %s\n", word, e.Package, e.Test, strings.TrimSpace(lastLine(output[key])), reason)
			delete(output, key)
		}
	}
	if passed == 0 {
		fmt.Println("skipcheck: no test ran")
		status = 1
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	return status
}

// lastLine is the line in which a skipped test said why.
func lastLine(lines []string) string {
	for i := len(lines) - 1; i >= 0; i-- {
		if l := strings.TrimSpace(lines[i]); l != "" && !strings.HasPrefix(l, "---") && !strings.HasPrefix(l, "===") {
			return l
		}
	}
	return ""
}
