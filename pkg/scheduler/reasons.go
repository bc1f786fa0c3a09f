package scheduler

import (
	"regexp"
	"slices"
	"strconv"
)

// AllReasons lists every reason, for metrics.
var AllReasons = []Reason{
	Selector, NotAlive, NotSynced, Containers, Drained, Unread, Relabelled, Avoided,
	Resources, Ports, MaxPerNode, Skew,
}

// reasonCount matches one reason with its number. Reasons of an outside scheduler may contain commas and colons.
var reasonCount = regexp.MustCompile(`(.+?): (\d+)(?:, |$)`)

// ParseReasons parses Reasons.String. It skips what it cannot parse, such as the end of a text that was cut.
func ParseReasons(text string) Reasons {
	r := Reasons{}
	for _, m := range reasonCount.FindAllStringSubmatch(text, -1) {
		if n, err := strconv.Atoi(m[2]); err == nil {
			r[Reason(m[1])] = n
		}
	}
	return r
}

// Others returns the reasons that an outside scheduler defined.
func (r Reasons) Others() Reasons {
	own := Reasons{}
	for reason, n := range r {
		if !slices.Contains(AllReasons, reason) {
			own[reason] = n
		}
	}
	return own
}
