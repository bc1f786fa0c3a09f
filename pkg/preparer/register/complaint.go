package register

import (
	"regexp"
	"strings"
	"time"
)

// renewAfter is how long a complaint is kept while the check reports the same failure in other words.
const renewAfter = time.Minute

// complaint is the text in the pod's report about a check that does not pass. Many checks return other times and
// counters at each run, and the report must not change at each run. The zero value is for a check that passes.
type complaint struct {
	text string // as the check returned it
	gist gist   // of the text
	at   time.Time
}

type gist struct{ reason, detail string }

// hear takes in the latest text of a check that does not pass. If the reason differs, the complaint changes at once. If
// only words differ, it changes when it is older than renewAfter. If only numbers differ, it does not change.
func (c *complaint) hear(text string, now time.Time) (changed bool) {
	next := classify(text)
	if c.text != "" && next.reason == c.gist.reason && (next.detail == c.gist.detail || now.Sub(c.at) < renewAfter) {
		return false
	}
	changed = c.text != text
	*c = complaint{text: text, gist: next, at: now}
	return changed
}

// outputMark separates the reason from the response in the output of Consul's HTTP checks.
const outputMark = " Output: "

var longNumbers = regexp.MustCompile(`[0-9]{4,}`)

// classify: the reason of a script is the first line, of an HTTP check the part before the response, of a TCP check the
// whole text. detail has the words of the rest that contain no digits.
func classify(text string) gist {
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
	return gist{reason: longNumbers.ReplaceAllString(reason, "#"), detail: strings.Join(kept, " ")}
}
