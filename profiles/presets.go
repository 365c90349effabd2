package profiles

import "embed"

// The presets are data: presets/*.toml, which people read, copy and override.
// Parsing them takes about as long as everything else that a launch resolves,
// so builtins.go holds the same in Go, which costs nothing at run time. A test
// proves that the two agree.
//
//go:generate go test -run ^TestBuiltinsAreCurrent$ . -update

//go:embed presets/*.toml
var presetFiles embed.FS

// presetText returns the file of a preset.
func presetText(name string) ([]byte, error) {
	return presetFiles.ReadFile("presets/" + name + ".toml")
}
