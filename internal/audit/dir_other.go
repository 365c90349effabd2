//go:build !unix

package audit

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

var errNoSystem = errors.New("there is no audit log on " + runtime.GOOS)

type dir struct{ path string }

func openDir(path string, _ bool) (*dir, error) {
	return nil, &Error{Msg: fmt.Sprintf("opening the audit log in %q", path), Hint: "use Linux or macOS", Err: errNoSystem}
}

func (*dir) close()                                    {}
func (*dir) exposed() bool                             { return false }
func (*dir) openRead(string) (*os.File, error)         { return nil, errNoSystem }
func (*dir) openAppend(string, bool) (*os.File, error) { return nil, errNoSystem }
func (*dir) remove(string) error                       { return errNoSystem }
func (*dir) sync() error                               { return errNoSystem }
func (*dir) segments() ([]int, error)                  { return nil, errNoSystem }
func (*dir) lock() error                               { return errNoSystem }
func (*dir) check(*os.File, string, int64) error       { return errNoSystem }
func writeOnce(*os.File, []byte) (int, error)          { return 0, errNoSystem }
