package trust

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// signer is one line of an allowed_signers file.
type signer struct {
	principals string // pattern list of the key's owners
	namespaces string // pattern list; empty: all namespaces
	after      time.Time
	before     time.Time // after and before limit the time of use; zero: not limited
	key        ssh.PublicKey
}

const lineAllowed = "allowed: PRINCIPALS [OPTIONS] KEYTYPE KEY [COMMENT]"

// parseSigners refuses the whole file if one line is wrong. Otherwise a key whose limit has a typing error could be
// valid without the limit. Times without a zone are in the zone loc. Source:
// https://man.openbsd.org/ssh-keygen.1#ALLOWED_SIGNERS
func parseSigners(data []byte, loc *time.Location) ([]signer, error) {
	var signers []signer
	n := 0
	for line := range bytes.Lines(data) {
		n++
		text := strings.TrimSpace(string(line))
		if text == "" || text[0] == '#' {
			continue
		}
		s, err := parseSigner(text, loc)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		signers = append(signers, s)
	}
	if len(signers) == 0 {
		return nil, errors.New("it lists no key; " + lineAllowed)
	}
	return signers, nil
}

func parseSigner(text string, loc *time.Location) (signer, error) {
	principals, rest, err := cutPrincipals(text)
	if err != nil {
		return signer{}, err
	}
	key, _, options, _, err := ssh.ParseAuthorizedKey([]byte(rest))
	if err != nil {
		return signer{}, fmt.Errorf("no key of a known type: %w; %s", err, lineAllowed)
	}
	if err := checkKey(key); err != nil {
		return signer{}, err
	}
	s := signer{principals: principals, key: key}
	seen := map[string]bool{}
	for _, option := range options {
		name, value, _ := strings.Cut(option, "=")
		name = strings.ToLower(name)
		if seen[name] {
			return signer{}, fmt.Errorf("option %s is given twice; allowed: once", name)
		}
		seen[name] = true
		if err := s.set(name, value, loc); err != nil {
			return signer{}, err
		}
	}
	if !s.after.IsZero() && !s.before.IsZero() && !s.before.After(s.after) {
		return signer{}, errors.New("valid-before is not later than valid-after")
	}
	return s, nil
}

func cutPrincipals(text string) (principals, rest string, err error) {
	if quoted, ok := strings.CutPrefix(text, `"`); ok {
		principals, rest, ok = strings.Cut(quoted, `"`)
		if !ok {
			return "", "", errors.New("a quote is not closed; " + lineAllowed)
		}
	} else if i := strings.IndexAny(text, " \t"); i > 0 {
		principals, rest = text[:i], text[i:]
	}
	if rest = strings.TrimSpace(rest); principals == "" || rest == "" {
		return "", "", errors.New("the line is too short; " + lineAllowed)
	}
	return principals, rest, nil
}

func (s *signer) set(name, value string, loc *time.Location) (err error) {
	unquoted, quoted := strings.CutPrefix(value, `"`)
	if quoted {
		value = strings.TrimSuffix(unquoted, `"`)
	}
	switch name {
	case "namespaces":
		if s.namespaces = value; value == "" {
			err = errors.New(`option namespaces has no value; allowed: namespaces="` + Namespace + `"`)
		}
	case "valid-after":
		s.after, err = parseTime(name, value, loc)
	case "valid-before":
		s.before, err = parseTime(name, value, loc)
	case "cert-authority":
		err = errors.New("option cert-authority is not supported; list the signers' own keys")
	default:
		err = fmt.Errorf("option %q is not known; allowed: namespaces, valid-after and valid-before", name)
	}
	return err
}

func parseTime(name, value string, loc *time.Location) (time.Time, error) {
	text, utc := strings.CutSuffix(strings.ToUpper(value), "Z")
	if utc {
		loc = time.UTC
	}
	for _, layout := range []string{"20060102", "200601021504", "20060102150405"} {
		if at, err := time.ParseInLocation(layout, text, loc); err == nil && len(text) == len(layout) {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("option %s has the value %q; allowed: a time as YYYYMMDD, YYYYMMDDHHMM or "+
		"YYYYMMDDHHMMSS, with Z for UTC", name, value)
}

func (s *signer) usable(now time.Time) error {
	switch {
	case s.namespaces != "" && !matchList(Namespace, s.namespaces):
		return fmt.Errorf("its key is for the namespaces %q, not for %s", s.namespaces, Namespace)
	case !s.after.IsZero() && now.Before(s.after):
		return fmt.Errorf("its key is not valid before %s", s.after.Format(time.RFC3339))
	case !s.before.IsZero() && now.After(s.before):
		return fmt.Errorf("its key is not valid after %s", s.before.Format(time.RFC3339))
	}
	return nil
}

// matchList reports whether a comma-separated list of patterns matches: at least one pattern without '!' must match,
// and no pattern with '!' may match. Source: https://man.openbsd.org/ssh_config.5#PATTERNS
func matchList(text, list string) bool {
	found := false
	for pattern := range strings.SplitSeq(list, ",") {
		pattern, not := strings.CutPrefix(strings.TrimSpace(pattern), "!")
		switch match := glob(pattern, text); {
		case match && not:
			return false
		case match:
			found = true
		}
	}
	return found
}

var wildcards = strings.NewReplacer(`\*`, ".*", `\?`, ".")

// glob reports whether text matches a pattern with '*' for any text and '?' for one character. Its time depends only on
// the two lengths, so no pattern makes it slow.
func glob(pattern, text string) bool {
	pattern = string([]rune(pattern)) // valid UTF-8
	return regexp.MustCompile("(?s)^" + wildcards.Replace(regexp.QuoteMeta(pattern)) + "$").MatchString(text)
}
