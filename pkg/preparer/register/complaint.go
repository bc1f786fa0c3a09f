package register

import (
	"regexp"
	"strings"
	"time"
)

// retellAfter is how long a complaint stands before other words of the same check for the same failure replace it.
const retellAfter = time.Minute

// complaint is what a check that does not pass is reported to have said. A check says it anew each time that it is asked, with
// timings and counters in it; repeating all that would change the report each time. The zero value is that of a check that
// passes.
type complaint struct {
	text string // as said when it was taken in
	told told   // what it amounts to
	at   time.Time
}

// told is a complaint without what differs from one time to the next.
type told struct{ reason, detail string }

// hear takes in what a check that does not pass said last, and returns whether text is another now: at once when it fails for
// another reason, and after a while when it merely says something else besides, other numbers apart.
func (c *complaint) hear(text string, now time.Time) (changed bool) {
	next := classify(text)
	if c.text != "" && next.reason == c.told.reason && (next.detail == c.told.detail || now.Sub(c.at) < retellAfter) {
		return false
	}
	changed = c.text != text
	*c = complaint{text: text, told: next, at: now}
	return changed
}

// outputMark is what Consul puts between why a check of its own fails and what it was answered.
const outputMark = " Output: "

// longNumbers are those of ports and times, not those of exit and HTTP statuses.
var longNumbers = regexp.MustCompile(`[0-9]{4,}`)

// classify takes a complaint apart. The reason is the first line of a script's verdict, and what is before the answer of an
// HTTP check; it is all of a TCP check's. Of what follows only the words count that have no digits.
func classify(text string) told {
	reason, detail, _ := strings.Cut(text, "\n")
	if before, after, found := strings.Cut(reason, outputMark); found {
		reason, detail = before, after+"\n"+detail
	}
	words := strings.FieldsFunc(detail, func(r rune) bool { return strings.ContainsRune(" \t\r\n,;=", r) })
	kept := words[:0]
	for _, w := range words {
		if !strings.ContainsAny(w, "0123456789") {
			kept = append(kept, w)
		}
	}
	return told{reason: longNumbers.ReplaceAllString(reason, "#"), detail: strings.Join(kept, " ")}
}
