package supervise

import "testing"

func FuzzDiag(f *testing.F) {
	f.Add(make([]byte, 40))
	f.Add([]byte{44, 0, 0, 0, 20, 0, 0, 0, 1, 0, 0, 0, 9, 9, 0, 0, 1, 1, 7, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 12, 0, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, in []byte) { parseDiag(in, 5) })
}
