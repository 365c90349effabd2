package capture_test

import (
	"fmt"
	"os/exec"
	"time"

	"sandboxd/capture"
)

// A worker gets the capture's file as backend.Command's Stdout and Stderr; here
// a plain process does. docs/library.md has the whole of a confined launch.
func Example() {
	out, err := capture.New(capture.Options{MaxOutput: 18})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer out.Close()
	cmd := exec.Command("seq", "1000")
	cmd.Stdout, cmd.Stderr = out.File(), out.File()
	if err := cmd.Run(); err != nil { // in the place of backend.Worker's Wait
		fmt.Println(err)
	}
	if err := out.Drain(time.Second); err != nil {
		fmt.Println(err)
	}
	fmt.Println(out.Output())
	fmt.Println("truncated:", out.Output().Truncated, "of", out.Output().Bytes, "bytes")
	// Output:
	// 1
	// 2
	// 3
	// 4
	// 5
	// [3875 bytes left out]
	// 999
	// 1000
	//
	// truncated: true of 3893 bytes
}
