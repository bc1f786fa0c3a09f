package feature

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Writer is a living farm or node.
type Writer struct {
	Kind     string // "farm" or "node"
	Name     string
	Version  string // of the program
	Emulates string // from its record; it may be empty or invalid
}

// String is for messages.
func (w Writer) String() string {
	switch {
	case w.Emulates == "":
		return fmt.Sprintf("%s %s (version %s, from before the gate)", w.Kind, w.Name, cmp.Or(w.Version, "not known"))
	case w.Version == w.Emulates:
		return fmt.Sprintf("%s %s (version %s)", w.Kind, w.Name, w.Version)
	default:
		return fmt.Sprintf("%s %s (version %s, emulates %s)", w.Kind, w.Name,
			cmp.Or(w.Version, "not known"), w.Emulates)
	}
}

// Next returns the next version of the gate: the lowest version that a living writer emulates. The gate never falls.
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

// Below returns the writers that hold the gate back, the lowest first.
func Below(version string, living []Writer) []Writer {
	below := slices.DeleteFunc(slices.Clone(living),
		func(w Writer) bool { return !After(version, Counted(w.Emulates)) })
	slices.SortFunc(below, func(a, b Writer) int {
		return cmp.Or(compare(Counted(a.Emulates), Counted(b.Emulates)), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Name, b.Name))
	})
	return below
}

// ClosedError means that the gate does not allow a record yet.
type ClosedError struct {
	Need
	Gate   string
	Behind []Writer // the writers that hold the gate back, as far as known
}

// Highest returns the newest version that a writer emulates, or least if that is newer.
func Highest(least string, living []Writer) string {
	for _, w := range living {
		least = higher(least, Counted(w.Emulates))
	}
	return least
}

const maxNamed = 5

// Error names field, feature and gate, and what to upgrade.
func (c *ClosedError) Error() string {
	text := fmt.Sprintf("%s needs version %s (feature %s), and the cluster's gate is %s; nothing was written",
		cmp.Or(c.Field, "the record"), c.Since, c.Name, c.Gate)
	if len(c.Behind) > 0 {
		text += "; held back by " + Names(c.Behind) + ": upgrade that"
	} else {
		text += "; the leader of the farms raises it once all farms and nodes that live are of that version"
	}
	return text
}

// Names names the first few writers.
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

// BehindError means that a program is too old to write, because it would drop fields that it does not know.
type BehindError struct{ Emulates, Gate string }

// Error describes what to upgrade.
func (b *BehindError) Error() string {
	return fmt.Sprintf("this program writes records of version %s, and the cluster's gate is %s: it would drop "+
		"fields that it does not know; upgrade it to %s or later, or start it without --emulation-version; nothing "+
		"was written",
		b.Emulates, b.Gate, b.Gate)
}

// Lookout decides when the gate can be raised: when all living writers have allowed the higher version for a while,
// because a writer that restarts is missing among them for a moment.
type Lookout struct {
	to    string
	since time.Time
}

// Raise returns the new gate; "" if it does not change.
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
