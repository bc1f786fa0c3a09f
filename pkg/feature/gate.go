package feature

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Writer is somebody who lives and writes records.
type Writer struct {
	Kind     string // "farm" or "node"
	Name     string
	Version  string // of the program
	Emulates string // as its record says; it may be empty, or no version
}

// String names the writer and what it emulates.
func (w Writer) String() string {
	switch {
	case w.Emulates == "":
		return fmt.Sprintf("%s %s (version %s, from before the gate)", w.Kind, w.Name, cmp.Or(w.Version, "not known"))
	case w.Version == w.Emulates:
		return fmt.Sprintf("%s %s (version %s)", w.Kind, w.Name, w.Version)
	default:
		return fmt.Sprintf("%s %s (version %s, emulates %s)", w.Kind, w.Name, cmp.Or(w.Version, "not known"), w.Emulates)
	}
}

// Next returns what the gate is to be: the oldest version that somebody who lives emulates, and never less than it is. Where nobody lives it
// stays.
func Next(gate string, living []Writer) string {
	if len(living) == 0 {
		return gate
	}
	oldest := Counted(living[0].Emulates)
	for _, w := range living[1:] {
		oldest = lower(oldest, Counted(w.Emulates))
	}
	return higher(Counted(gate), oldest)
}

// Below returns those that emulate less than a version, the oldest first: they keep the gate from getting there.
func Below(version string, living []Writer) []Writer {
	below := slices.DeleteFunc(slices.Clone(living), func(w Writer) bool { return !After(version, Counted(w.Emulates)) })
	slices.SortFunc(below, func(a, b Writer) int {
		return cmp.Or(compare(Counted(a.Emulates), Counted(b.Emulates)), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return below
}

// ClosedError says that something may not be written yet.
type ClosedError struct {
	Need
	Gate   string
	Behind []Writer // who keeps the gate where it is, as far as is known
}

// Highest returns the newest version that some writers write records of, or the least that it may be.
func Highest(least string, living []Writer) string {
	for _, w := range living {
		least = higher(least, Counted(w.Emulates))
	}
	return least
}

// maxNamed is how many writers are named.
const maxNamed = 5

// Error names field, feature and gate, and what to upgrade.
func (e *ClosedError) Error() string {
	text := fmt.Sprintf("%s needs version %s (feature %s), and the cluster's gate is %s; nothing was written", cmp.Or(e.Field, "the record"), e.Since, e.Name, e.Gate)
	if len(e.Behind) > 0 {
		text += "; held back by " + Names(e.Behind) + ": upgrade that"
	} else {
		text += "; the leader of the farms raises it once all farms and nodes that live are of that version"
	}
	return text
}

// Names lists some writers, the first few by name.
func Names(writers []Writer) string {
	named := make([]string, 0, maxNamed)
	for _, w := range writers[:min(len(writers), maxNamed)] {
		named = append(named, w.String())
	}
	text := strings.Join(named, ", ")
	if more := len(writers) - len(named); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// BehindError says that a program is too old to write into the store: it would drop what it does not know.
type BehindError struct{ Emulates, Gate string }

// Error says what to upgrade.
func (e *BehindError) Error() string {
	return fmt.Sprintf("this program writes records of version %s, and the cluster's gate is %s: it would drop fields that it does not know; upgrade it to %s or later, or start it without --emulation-version; nothing was written",
		e.Emulates, e.Gate, e.Gate)
}

// Lookout sees when the gate may be raised: when all that live have allowed it for a while. Somebody who is being started anew is not there
// for a moment.
type Lookout struct {
	to    string
	since time.Time
}

// Raise returns what the gate is to be, "" where it stays.
func (l *Lookout) Raise(now time.Time, gate string, living []Writer, stable time.Duration) string {
	to := Next(gate, living)
	if l.to == "" || After(l.to, to) || !After(l.to, gate) {
		l.to, l.since = to, now
	}
	if !After(l.to, gate) || now.Sub(l.since) < stable {
		return ""
	}
	return l.to
}
