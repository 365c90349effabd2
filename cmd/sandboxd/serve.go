package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/backend/landlock"
	"sandboxd/daemon"
	"sandboxd/internal/audit"
	"sandboxd/internal/cli"
	"sandboxd/internal/features"
	"sandboxd/internal/listen"
	"sandboxd/internal/logfile"
)

func backendNames() []string { return []string{landlock.Name, landlock.NativeName} }

// Bounds of the service.
const (
	// backlog is how many clients may wait to be accepted: a client that does not wait
	// for its connection, as Go's, fails if there are more.
	backlog = 1024
	// lookEvery is how often it is looked whether clients can still find the socket.
	lookEvery = 30 * time.Second
	// lastWords is how long the log may take at the end.
	lastWords = time.Second
)

// service is a running daemon.
type service struct {
	settings
	monitor *daemon.Monitor
	log     *slog.Logger
	out     *logfile.Log
}

// serve is the daemon's life.
func serve(ctx context.Context, s settings, stderr io.Writer) error {
	inherited, err := listen.FromManager() // early: it cleans the environment
	if err != nil {
		return refuse("let systemd start the daemon, or nobody set LISTEN_FDS", "%v", err)
	}
	if err := hide(); err != nil {
		return &problem{statusFailed, "closing this process to others: " + err.Error(), ""}
	}
	o, err := s.options(inherited)
	if err != nil {
		return err
	}
	v := &service{settings: s}
	if v.log, v.out, err = s.openLog(stderr); err != nil {
		return err
	}
	defer v.out.Close(lastWords)
	o.Log = v.log
	// The socket's lock before that of the audit log: of two daemons at one place the
	// second should hear about the place.
	if o.Listener == nil {
		if o.Listener, err = listen.Open(o.Socket); err != nil {
			return whyNot(err)
		}
	}
	defer o.Listener.Close()
	records, err := s.openAudit(o)
	if err != nil {
		return err
	}
	o.Audit = records
	defer func() {
		if err := records.Close(); err != nil {
			v.log.Error("closing the audit log", "error", err)
		}
	}()
	// Not signal.Ignore: workers would inherit that. A log's reader that goes away
	// is no reason to end.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	if v.monitor, err = daemon.New(o); err != nil {
		return whyNot(err)
	}
	v.log.Info("listening", "socket", v.monitor.Socket(), "version", o.Version, "mode", o.Socket.Mode.String(), "pid", os.Getpid())
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var helpers sync.WaitGroup
	defer helpers.Wait()
	helpers.Go(func() { v.hear(ctx, stop, signals) })
	helpers.Go(func() { v.tell(ctx) })
	err = v.monitor.Run(ctx, time.Duration(s.drain))
	signal.Stop(signals)
	close(signals)
	stop()
	if err != nil {
		v.log.Error("the daemon ends", "error", err)
		return &problem{statusFailed, err.Error(), "the log says more; `sbx features` says what this host can do"}
	}
	v.log.Info("the daemon has stopped")
	return nil
}

// options checks the flags, and says how to serve.
func (s settings) options(inherited []listen.Inherited) (o daemon.Options, err error) {
	o.Version = cli.Version(version)
	if err := oneOf("log-format", s.logFormat, "text", "json"); err != nil {
		return o, err
	}
	switch {
	case s.system && os.Geteuid() != 0:
		return o, refuse("start it as root, or without --system for yourself alone", "--system needs root")
	case !s.system && s.group != "":
		return o, refuse("add --system, or leave it out: a user's socket is the user's alone", "--group is of --system")
	case s.system && s.group == "" && len(inherited) == 0:
		return o, refuse("name the group whose members may use the daemon", "--system needs --group")
	case len(inherited) > 1:
		return o, refuse("one ListenStream= is enough", "the service manager hands over %d sockets", len(inherited))
	case len(inherited) == 1 && s.socket != "":
		return o, refuse("leave it out, or start the daemon without the socket unit", "--socket, and a socket of the service manager's")
	}
	o.Socket = listen.Options{Path: s.socket, Group: s.group, Backlog: backlog}
	if s.system {
		o.Socket.Mode = listen.System
	}
	if s.socket != "" {
		if o.Socket.Path, err = filepath.Abs(s.socket); err != nil {
			return o, refuse("give an absolute path", "--socket: %v", err)
		}
	}
	if len(inherited) == 1 {
		if o.Listener, err = judge(inherited[0].Listener, o.Socket.Mode, s.group); err != nil {
			return o, err
		}
	}
	if s.config != "" {
		if o.Ceilings, err = readConfig(s.config); err != nil {
			return o, err
		}
	}
	ids, err := frontIDs(s.frontUser)
	if err != nil {
		return o, err
	}
	o.FrontArgs = frontArgs(s.system, ids)
	o.Features = sync.OnceValue(func() any { return features.Of(o.Version, daemon.Backends(nil)) })
	for _, b := range daemon.Backends(nil) {
		if c := b.Probe(); !c.Usable { // the front could not be confined either
			return o, refuse(c.Fix, "this host cannot confine anything: %s: %s", c.Backend, c.Reason)
		}
	}
	return o, nil
}

// judge looks at the owner, the group and the mode of a socket that the service manager
// made: systemd's default is open to everybody.
func judge(l *listen.Listener, mode listen.Mode, group string) (*listen.Listener, error) {
	var st unix.Stat_t
	if err := unix.Lstat(l.Path(), &st); err != nil {
		return nil, refuse("the socket unit made it; is it in this mount namespace?", "the service manager's socket: %v", err)
	}
	closed, hint := uint32(0o077), "SocketMode=0600 in the socket unit"
	if mode == listen.System {
		closed, hint = 0o007, "SocketMode=0660 and SocketGroup= in the socket unit"
	}
	bits := uint32(st.Mode) // 16 bits on macOS
	switch {
	case bits&unix.S_IFMT != unix.S_IFSOCK || int(st.Uid) != os.Geteuid():
		return nil, refuse("remove what is there, and start the socket unit again", "at %q is no socket of this user", l.Path())
	case bits&closed != 0:
		return nil, refuse(hint, "the service manager's socket %q is open to others: its mode is %04o", l.Path(), bits&0o7777)
	}
	if group != "" {
		var name groupWord
		if err := name.UnmarshalText([]byte(group)); err != nil {
			return nil, refuse("name the group whose members may use the daemon", "--group: %v", err)
		}
		if int(st.Gid) != name.id-1 {
			return nil, refuse("SocketGroup="+group+" in the socket unit", "the service manager's socket %q is of group %d, and --group says %q", l.Path(), st.Gid, group)
		}
	}
	return l, nil
}

// openLog opens the log. Nothing in the daemon ever waits for it.
func (s settings) openLog(stderr io.Writer) (*slog.Logger, *logfile.Log, error) {
	var sink logfile.Sink = logfile.Stream{Writer: stderr}
	if s.logFile != "" {
		path, err := filepath.Abs(s.logFile)
		if err != nil {
			return nil, nil, refuse("give an absolute path", "--log-file: %v", err)
		}
		if sink, err = logfile.OpenFile(path, int64(s.logSize), s.logKeep); err != nil {
			return nil, nil, refuse("name a file in a directory that others cannot write to", "%v", err)
		}
	}
	o := &slog.HandlerOptions{Level: slog.LevelInfo}
	if s.verbose {
		o.Level = slog.LevelDebug
	}
	handler := func(w io.Writer) slog.Handler {
		if s.logFormat == "json" {
			return slog.NewJSONHandler(w, o)
		}
		return slog.NewTextHandler(w, o)
	}
	line := func(text string, args ...any) []byte {
		var b bytes.Buffer
		slog.New(handler(&b)).Warn(text, args...)
		return b.Bytes()
	}
	out := logfile.New(sink, logfile.Lines{
		Lost: func(n uint64) []byte {
			return line("lines of the log were lost: nobody took them, or there was no space", "lines", n)
		},
		Stuck: func(err error) []byte { return line("the log file is not opened anew", "error", err) },
	})
	return slog.New(handler(out)), out, nil
}

// openAudit opens the audit log. A log has one writer: a daemon at another place than
// the usual one has one of its own beside the usual.
func (s settings) openAudit(o daemon.Options) (*audit.Log, error) {
	dir := s.auditLog
	if dir == "" {
		var err error
		if dir, err = audit.DefaultDir(); err != nil {
			return nil, whyNot(err)
		}
		at := o.Listener.Path()
		if usual, err := listen.DefaultPath(o.Socket.Mode); err != nil || usual != at {
			sum := sha256.Sum256([]byte(at))
			dir += "-" + hex.EncodeToString(sum[:6])
		}
	}
	l, err := audit.Open(dir, audit.Options{Program: "sandboxd " + o.Version})
	if err != nil {
		return nil, whyNot(err)
	}
	return l, nil
}

// whyNot gives the errors of a start their line and hint.
func whyNot(err error) error {
	var running *listen.AlreadyRunning
	var place *listen.Error
	var room *daemon.RoomError
	var record *audit.Error
	switch {
	case errors.As(err, &running):
		return refuse("stop it first, or choose another --socket", "%v", err)
	case errors.As(err, &place):
		hint := place.Hint
		bare := *place
		bare.Hint = ""
		return refuse(hint, "%v", &bare)
	case errors.As(err, &room):
		return refuse("raise the limit: `ulimit -n`, or LimitNOFILE= in a unit", "%v", err)
	case errors.As(err, &record):
		bare := *record
		bare.Hint = ""
		return refuse(record.Hint, "%v", &bare)
	}
	return &problem{statusFailed, err.Error(), ""}
}

// hear does what signals ask for, until there are no more.
func (v *service) hear(ctx context.Context, stop func(), signals <-chan os.Signal) {
	for s := range signals {
		switch {
		case s == syscall.SIGHUP:
			v.reload()
		case ctx.Err() == nil:
			v.log.Info("stopping", "signal", s.String(), "drain", time.Duration(v.drain))
			v.notify(listen.Stopping)
			stop()
		default:
			v.log.Info("stopping at once", "signal", s.String())
			v.monitor.Abort()
		}
	}
}

// reload reads the configuration again. With one that is wrong the old one holds.
func (v *service) reload() {
	if _, err := listen.NotifyReloading(); err != nil {
		v.log.Warn("the service manager is not told", "error", err)
	}
	v.out.Reopen()
	if v.config != "" {
		c, err := readConfig(v.config)
		if err != nil {
			var p *problem
			_ = errors.As(err, &p)
			v.log.Error("the configuration is not replaced", "error", err, "hint", p.hint)
		} else {
			v.monitor.SetCeilings(c)
		}
	}
	v.log.Info("reloaded")
	v.notify(listen.Ready)
}

func (v *service) notify(state string) {
	if _, err := listen.Notify(state); err != nil {
		v.log.Warn("the service manager is not told", "error", err)
	}
}

// tell says to the service manager that the daemon serves, and that it lives.
func (v *service) tell(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-v.monitor.Begun():
	}
	v.notify(listen.Ready)
	v.log.Info("serving", "socket", v.monitor.Socket())
	every := lookEvery
	limit, err := listen.WatchdogTimeout()
	if err != nil {
		v.log.Warn("no watchdog", "error", err)
	} else if limit > 0 {
		every = min(every, limit/2)
	}
	for tick := time.NewTicker(every); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		// A monitor that hangs does not come back from here.
		if err := v.monitor.Alive(); err != nil {
			v.log.Error("clients cannot find the socket", "error", err)
		}
		if limit > 0 {
			v.notify(listen.Alive)
		}
	}
}
