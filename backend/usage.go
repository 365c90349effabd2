package backend

// Usage is what a worker's tree used. A field that is nil is not known here.
type Usage struct {
	// Source says where the figures are from, but for PeakMemory: "cgroup2",
	// "cgroup1", or "rusage", which counts only processes that were waited for.
	Source string   `json:"source"`
	User   *float64 `json:"user_seconds,omitempty"`
	System *float64 `json:"system_seconds,omitempty"`
	// PeakMemory is in bytes: of the whole tree from a cgroup, of the largest
	// single process from rusage.
	PeakMemory       *int64 `json:"peak_memory_bytes,omitempty"`
	PeakMemorySource string `json:"peak_memory_source,omitempty"` // like Source
	PeakPids         *int   `json:"peak_pids,omitempty"`
	// PeakTemp is the most that the private temporary directories were seen to
	// hold, in bytes. They are looked at, again and again, where they are limited;
	// what came and went between two looks is not in it.
	PeakTemp *int64 `json:"peak_temp_bytes,omitempty"`
	// BytesOut is what went to standard output and error, where sbx stood
	// between.
	BytesOut *int64 `json:"bytes_out,omitempty"`
	// OOMKills is how many processes the kernel killed for the memory limit,
	// PidsHits how often the limit on processes refused one.
	OOMKills *int `json:"oom_kills,omitempty"`
	PidsHits *int `json:"pids_limit_hits,omitempty"`
}
