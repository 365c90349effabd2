module example.test/app

go 1.24

require (
	github.com/spf13/cobra v1.10.2
	golang.org/x/sys v0.50.0
)
