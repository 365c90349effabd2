package daemon

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"sandboxd/internal/confine"
)

// Confine gives up all of the front's rights but its link. As root it becomes
// user. What cannot be had on this host is an error, or with weak, which the
// administrator says, a gap that the log tells.
func Confine(user *confine.IDs, weak bool) (string, error) {
	_ = time.Now().Local() // the time zone is a file, and read when first used
	if os.Geteuid() != 0 {
		user = nil
	}
	p, err := confine.Self(confine.Options{User: user, Keep: []int{frontLink}, Require: !weak})
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("landlock ABI %d (%s), filter %s of %d instructions, %d threads", p.Landlock.ABI, p.Landlock.Threads, p.Filter.Name, p.Filter.Instructions, len(p.Threads))
	if len(p.Gaps) > 0 {
		gaps, err := json.Marshal(p.Gaps)
		if err != nil {
			return "", err
		}
		text += ", gaps: " + strings.ToValidUTF8(string(gaps), "?")
	}
	return text, nil
}
