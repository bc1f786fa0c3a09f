package container

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Accounts has the image's files of accounts. They come from the image, so their content may be hostile. Lines that are
// not lines of passwd(5) and group(5) are skipped.
type Accounts struct {
	Passwd []byte // of /etc/passwd; nil: the image has none
	Group  []byte // of /etc/group
}

// User is the user of a process, with numbers of the container.
type User struct {
	UID, GID uint32
	Groups   []uint32 // the other groups, sorted
	Home     string
}

// maxGroups bounds the groups of one account.
const maxGroups = 1024

const userAllowed = "user, user:group or numbers"

// Lookup finds a user by the rules of Docker. The text is user[:group], each a name or a number. An empty text means
// the user 0. A number need not be in the files: without an entry, its group is 0 and its home is /. If the text has a
// group, the user has no other groups. The error is a phrase that says what is allowed.
func (a Accounts) Lookup(text string) (User, error) {
	name, group, withGroup := strings.Cut(text, ":")
	if strings.Contains(group, ":") || withGroup && (name == "" || group == "") {
		return User{}, errors.New(userAllowed)
	}
	who, login, err := a.account(name)
	if err != nil {
		return User{}, err
	}
	if withGroup {
		who.GID, err = a.groupNumber(group)
		return who, err
	}
	if login != "" {
		who.Groups, err = a.groupsOf(login, who.GID)
	}
	return who, err
}

// account finds an account without its other groups. login is its name; empty: it has no entry.
func (a Accounts) account(name string) (who User, login string, err error) {
	if name == "" {
		name = "0"
	}
	number, isNumber := parseID(name)
	for fields := range entries(a.Passwd, passwdFields) {
		uid, ok := parseID(fields[2])
		gid, gidOK := parseID(fields[3])
		if !ok || !gidOK || isNumber && uid != number || !isNumber && fields[0] != name {
			continue
		}
		return User{UID: uid, GID: gid, Home: homeOf(fields[5])}, fields[0], nil
	}
	if isNumber || name == "root" { // many images have no files of accounts
		return User{UID: number, Home: "/"}, "", nil
	}
	return User{}, "", fmt.Errorf("%s; the image's /etc/passwd has no account of this name", userAllowed)
}

func (a Accounts) groupNumber(group string) (uint32, error) {
	if gid, ok := parseID(group); ok {
		return gid, nil
	}
	for fields := range entries(a.Group, groupFields) {
		if gid, ok := parseID(fields[2]); ok && fields[0] == group {
			return gid, nil
		}
	}
	return 0, fmt.Errorf("%s; the image's /etc/group has no group of this name", userAllowed)
}

// groupsOf returns the groups that name an account as their member, without its own group.
func (a Accounts) groupsOf(login string, own uint32) (groups []uint32, err error) {
	seen := map[uint32]bool{own: true}
	for fields := range entries(a.Group, groupFields) {
		gid, ok := parseID(fields[2])
		if !ok || seen[gid] || !isMember(fields[3], login) {
			continue
		}
		seen[gid] = true
		if groups = append(groups, gid); len(groups) > maxGroups {
			return nil, fmt.Errorf("an account with at most %d groups", maxGroups)
		}
	}
	slices.Sort(groups)
	return groups, nil
}

func isMember(list, login string) bool {
	for name := range strings.SplitSeq(list, ",") {
		if name == login {
			return true
		}
	}
	return false
}

// The number of fields in a line of passwd(5) and of group(5).
const (
	passwdFields = 7
	groupFields  = 4
)

// entries returns the lines of a file that have a name and that number of fields. A line that is too long for a field
// of a process, or not text, is skipped.
func entries(data []byte, count int) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		for line := range bytes.Lines(data) {
			text := string(bytes.TrimSpace(line))
			if text == "" || text[0] == '#' || strings.Count(text, ":") != count-1 || !isText(text) {
				continue
			}
			if fields := strings.Split(text, ":"); fields[0] != "" && !yield(fields) {
				return
			}
		}
	}
}

// homeOf returns a home directory of passwd(5), or / if the field is not an absolute path.
func homeOf(text string) string {
	if strings.HasPrefix(text, "/") {
		return text
	}
	return "/"
}

// parseID parses a user or group number: digits only, at most maxID.
func parseID(text string) (uint32, bool) {
	if text == "" || text[0] < '0' || text[0] > '9' { // ParseUint takes a sign
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), err == nil && n <= maxID
}
