//go:build !race

package landlock

const raceEnabled = false
