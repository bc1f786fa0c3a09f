package scheduler

import (
	"regexp"
	"slices"
	"strconv"
)

// AllReasons lists every reason, for metrics.
var AllReasons = []Reason{Selector, NotAlive, NotSynced, Drained, Unread, Relabelled, Avoided, Resources, Ports, MaxPerNode, Skew}

// reasonCount is one reason in a text of Reasons. A scheduler's own may have commas and colons in it.
var reasonCount = regexp.MustCompile(`(.+?): (\d+)(?:, |$)`)

// ParseReasons reads what Reasons.String wrote; what it cannot read, such as the end of a text that was cut, it leaves out.
func ParseReasons(text string) Reasons {
	r := Reasons{}
	for _, m := range reasonCount.FindAllStringSubmatch(text, -1) {
		if n, err := strconv.Atoi(m[2]); err == nil {
			r[Reason(m[1])] = n
		}
	}
	return r
}

// Others returns those reasons that are none of ours: a scheduler has them of its own.
func (r Reasons) Others() Reasons {
	own := Reasons{}
	for reason, n := range r {
		if !slices.Contains(AllReasons, reason) {
			own[reason] = n
		}
	}
	return own
}
