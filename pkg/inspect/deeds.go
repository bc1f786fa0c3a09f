package inspect

import (
	"fmt"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Deed is one write of a command.
type Deed struct {
	What string // that was written, such as "the drain of node n1"
	Show string // the command that shows it
	// Unknown: Consul may have got it and has not said what came of it.
	Unknown bool
}

// maxDeeds bounds how many writes are named one by one.
const maxDeeds = 5

// Written says what a command that failed has written.
func Written(deeds []Deed) []string {
	var done, lines []string
	for _, d := range deeds {
		if !d.Unknown {
			done = append(done, d.What)
		}
	}
	if len(done) > 0 {
		lines = append(lines, "this was written: "+field.Few(done, maxDeeds, "; "))
	}
	for _, d := range deeds {
		if d.Unknown {
			lines = append(lines, fmt.Sprintf("it is not known whether this was written: %s; to see: %s", d.What, d.Show))
		}
	}
	switch {
	case len(lines) == 0:
		return []string{"nothing was written"}
	case len(done) == len(deeds):
		lines[0] += "; nothing else was"
	}
	return lines
}
