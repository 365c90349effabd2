//go:build unix && !darwin

package scratch

import (
	"syscall"
	"time"
)

func modified(st *syscall.Stat_t) time.Time { return time.Unix(st.Mtim.Unix()) }
