package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"

	"sandboxd/daemon"
	"sandboxd/internal/cli"
	"sandboxd/internal/confine"
)

// frontAccount is whose the front of a root's daemon is, if there is such an account.
const frontAccount = "sandboxd-front"

// nobodys is the user and group of the front where there is no account: a number that
// nobody else should have. It lies between what systemd gives to units with
// DynamicUser= (to 65519) and nobody (65534), which other programs run as.
const nobodys = 65521

// frontIDs says who the front of a root's daemon becomes; nil for another user's, which
// cannot become anybody.
func frontIDs(name string) (*confine.IDs, error) {
	if os.Geteuid() != 0 {
		if name != "" {
			return nil, refuse("leave it out: the front is this user's", "--front-user needs root")
		}
		return nil, nil
	}
	account, err := lookupUser(name)
	var unknown user.UnknownUserError
	switch {
	case name == "":
		account, err = user.Lookup(frontAccount)
		if errors.As(err, &unknown) {
			return &confine.IDs{UID: nobodys, GID: nobodys}, nil
		}
	}
	if err != nil {
		return nil, refuse("name an account that nothing else runs as", "--front-user %q: %v", name, err)
	}
	uid, uerr := strconv.Atoi(account.Uid)
	gid, gerr := strconv.Atoi(account.Gid)
	if err := errors.Join(uerr, gerr); err != nil || uid <= 0 || gid <= 0 {
		return nil, refuse("name an account that nothing else runs as", "--front-user %q has the user %s and the group %s", name, account.Uid, account.Gid)
	}
	return &confine.IDs{UID: uid, GID: gid}, nil
}

// lookupUser finds an account by name, or by number.
func lookupUser(word string) (*user.User, error) {
	if _, err := strconv.ParseUint(word, 10, 31); err == nil {
		return user.LookupId(word)
	}
	return user.Lookup(word)
}

// frontArgs are what [front] reads.
func frontArgs(system bool, ids *confine.IDs) []string {
	args := []string{"user"}
	if system {
		args = []string{"system"}
	}
	if ids != nil {
		args = append(args, strconv.Itoa(ids.UID), strconv.Itoa(ids.GID))
	}
	return args
}

// front is the front's life. Its arguments are its monitor's.
func front(args []string, stderr io.Writer) int {
	fail := func(err error) int {
		cli.Complain(stderr, daemon.FrontName, err.Error(), "")
		return statusFailed
	}
	var ids *confine.IDs
	switch {
	case len(args) == 3:
		uid, uerr := strconv.Atoi(args[1])
		gid, gerr := strconv.Atoi(args[2])
		if err := errors.Join(uerr, gerr); err != nil || uid <= 0 || gid <= 0 {
			return fail(fmt.Errorf("%q is nobody to become", args[1:]))
		}
		ids = &confine.IDs{UID: uid, GID: gid}
	case len(args) != 1:
		return fail(errors.New("this is the daemon's to start"))
	}
	err := daemon.Front(daemon.FrontOptions{
		Version: cli.Version(version), System: args[0] == "system",
		Confine: func() (string, error) { return daemon.Confine(ids, false) },
	})
	if err != nil {
		return fail(err)
	}
	return 0
}
