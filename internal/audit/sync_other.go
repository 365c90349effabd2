//go:build !linux

package audit

import "os"

// dataSync returns when the disk has the file. On macOS it is F_FULLFSYNC.
func dataSync(f *os.File) error { return f.Sync() }

func bootID() string { return "" }
