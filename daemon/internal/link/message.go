package link

// Conn is a connection's number, given by the monitor and never given twice.
type Conn uint64

// Message is one of the messages below.
type Message interface{ kind() kind }

// What the front says to the monitor.
type (
	// Ready is its first word: it is confined, and takes connections.
	Ready struct {
		// Posture is what it read of its own confinement, for the log.
		Posture string `json:"posture"`
	}
	// Launch asks for a worker. The payload is the client's frame, as it came: the
	// monitor reads it again. The descriptors are the client's.
	Launch struct {
		Conn   Conn  `json:"conn"`
		Launch int64 `json:"launch"` // the client's id
	}
	// Cancel ends a worker, or a launch of the connection that has none yet.
	Cancel struct {
		Conn   Conn   `json:"conn"`
		Ask    uint64 `json:"ask"`
		Launch int64  `json:"launch"`   // of the connection; 0 if a worker is named
		Worker string `json:"worker"`   // "" if a launch is named
		Grace  int64  `json:"grace_ms"` // -1 is the launch's own
	}
	// Signal sends a signal.
	Signal struct {
		Conn   Conn   `json:"conn"`
		Ask    uint64 `json:"ask"`
		Worker string `json:"worker"`
		Signal string `json:"signal"` // by name
	}
	// Resize sets the size of a worker's own terminal.
	Resize struct {
		Conn   Conn   `json:"conn"`
		Ask    uint64 `json:"ask"`
		Worker string `json:"worker"`
		Rows   uint16 `json:"rows"`
		Cols   uint16 `json:"cols"`
	}
	// Features asks what the host can enforce.
	Features struct {
		Conn Conn   `json:"conn"`
		Ask  uint64 `json:"ask"`
	}
	// Policy asks for the policy of a worker.
	Policy struct {
		Conn   Conn   `json:"conn"`
		Ask    uint64 `json:"ask"`
		Worker string `json:"worker"`
	}
	// Hangup tells that a connection has ended. Nothing is said of it after.
	Hangup struct {
		Conn Conn `json:"conn"`
	}
)

// What the monitor says to the front.
type (
	// Accepted brings a connection, as its one descriptor.
	Accepted struct {
		Conn Conn   `json:"conn"`
		UID  uint32 `json:"uid"`
		GID  uint32 `json:"gid"`
		PID  int    `json:"pid"`
		// Left is how many more the user may have.
		Left int `json:"left"`
	}
	// Started tells that a worker runs. Its descriptors are the ends of those
	// streams that are true, in this order.
	Started struct {
		Conn     Conn     `json:"conn"`
		Launch   int64    `json:"launch"`
		Worker   string   `json:"worker"`
		PID      int      `json:"pid"`
		PlanHash string   `json:"plan_hash"`
		Backend  string   `json:"backend"`
		Level    string   `json:"level"`
		Mode     string   `json:"mode"`
		Net      string   `json:"net"`
		Warnings []string `json:"warnings"`
		Stdin    bool     `json:"stdin"`
		Stdout   bool     `json:"stdout"`
		Stderr   bool     `json:"stderr"`
	}
	// Ended is a launch's end. The payload is the report.
	Ended struct {
		Conn    Conn   `json:"conn"`
		Launch  int64  `json:"launch"`
		Worker  string `json:"worker"`
		Message string `json:"message"`
		Hint    string `json:"hint"`
	}
	// Refused is the end of a launch that got no worker and no report.
	Refused struct {
		Conn    Conn   `json:"conn"`
		Launch  int64  `json:"launch"`
		Code    string `json:"code"` // of package protocol
		Message string `json:"message"`
		Hint    string `json:"hint"`
		Field   string `json:"field"`
	}
	// Planned is the end of a launch that was only asked about. The payload is the plan.
	Planned struct {
		Conn   Conn  `json:"conn"`
		Launch int64 `json:"launch"`
	}
	// Answer answers what has an Ask. Code is "" if it was done. Features and
	// policies are its payload.
	Answer struct {
		Conn    Conn   `json:"conn"`
		Ask     uint64 `json:"ask"`
		Code    string `json:"code"`
		Message string `json:"message"`
		Hint    string `json:"hint"`
	}
	// Stopping tells that no launch is taken any more.
	Stopping struct{}
	// Check tells how something is that launches depend on, at first and whenever it
	// changes.
	Check struct {
		Name    string `json:"name"`
		OK      bool   `json:"ok"`
		Message string `json:"message"`
		Hint    string `json:"hint"`
	}
)

type kind uint8

const (
	kindReady kind = iota + 1
	kindLaunch
	kindCancel
	kindSignal
	kindResize
	kindFeatures
	kindHangup
	kindAccepted
	kindStarted
	kindEnded
	kindRefused
	kindAnswer
	kindStopping
	kindPlanned
	kindPolicy
	kindCheck

	lastKind = kindCheck
)

func (*Ready) kind() kind    { return kindReady }
func (*Launch) kind() kind   { return kindLaunch }
func (*Cancel) kind() kind   { return kindCancel }
func (*Signal) kind() kind   { return kindSignal }
func (*Resize) kind() kind   { return kindResize }
func (*Features) kind() kind { return kindFeatures }
func (*Hangup) kind() kind   { return kindHangup }
func (*Accepted) kind() kind { return kindAccepted }
func (*Started) kind() kind  { return kindStarted }
func (*Ended) kind() kind    { return kindEnded }
func (*Refused) kind() kind  { return kindRefused }
func (*Answer) kind() kind   { return kindAnswer }
func (*Stopping) kind() kind { return kindStopping }
func (*Planned) kind() kind  { return kindPlanned }
func (*Policy) kind() kind   { return kindPolicy }
func (*Check) kind() kind    { return kindCheck }

// shape is what a message of a kind may bring.
type shape struct {
	fresh   func() Message
	payload int // the longest, in bytes
	files   int // the most
}

// maxBody is the longest JSON of a message, without its payload.
const maxBody = 64 << 10

func toMonitor(k kind) (shape, bool) {
	switch k {
	case kindReady:
		return shape{func() Message { return &Ready{} }, 0, 0}, true
	case kindLaunch:
		return shape{func() Message { return &Launch{} }, maxRequest, maxFiles}, true
	case kindCancel:
		return shape{func() Message { return &Cancel{} }, 0, 0}, true
	case kindSignal:
		return shape{func() Message { return &Signal{} }, 0, 0}, true
	case kindResize:
		return shape{func() Message { return &Resize{} }, 0, 0}, true
	case kindFeatures:
		return shape{func() Message { return &Features{} }, 0, 0}, true
	case kindPolicy:
		return shape{func() Message { return &Policy{} }, 0, 0}, true
	case kindHangup:
		return shape{func() Message { return &Hangup{} }, 0, 0}, true
	}
	return shape{}, false
}

func toFront(k kind) (shape, bool) {
	switch k {
	case kindAccepted:
		return shape{func() Message { return &Accepted{} }, 0, 1}, true
	case kindStarted:
		return shape{func() Message { return &Started{} }, 0, 3}, true
	case kindEnded:
		return shape{func() Message { return &Ended{} }, maxReport, 0}, true
	case kindRefused:
		return shape{func() Message { return &Refused{} }, 0, 0}, true
	case kindAnswer:
		return shape{func() Message { return &Answer{} }, maxReport, 0}, true
	case kindPlanned:
		return shape{func() Message { return &Planned{} }, maxReport, 0}, true
	case kindStopping:
		return shape{func() Message { return &Stopping{} }, 0, 0}, true
	case kindCheck:
		return shape{func() Message { return &Check{} }, 0, 0}, true
	}
	return shape{}, false
}
