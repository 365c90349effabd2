package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"sandboxd/client"
	"sandboxd/protocol"
	"sandboxd/report"
)

// A command is run for a minute at most, and what is known of it is told.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, client.Auto, "example", "1.0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	w, err := c.Launch(ctx, client.Launch{
		Request: protocol.Launch{Argv: []protocol.Bytes{"make", "test"}, Dir: "/home/u/project"},
		Stdout:  os.Stdout, Stderr: os.Stderr,
	})
	if err != nil {
		fmt.Println(err) // a *protocol.Error has a code and a hint
		return
	}
	exit, err := w.Wait()
	if err != nil {
		fmt.Println(err)
		return
	}
	var r report.Report
	if err := json.Unmarshal(exit.Report, &r); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.ExitStatus, r.Level)
}
