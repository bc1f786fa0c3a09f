package inspect

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// WitnessLines returns lines about nodes that report that the store went back in time, and what farms do about it.
func WitnessLines(s *store.Schema, w *store.Witnesses, now time.Time) []string {
	var lines []string
	if age := now.Sub(s.CreatedAt).Round(time.Second); s.WentBack && age < store.SoleWitness {
		who := "a farm or several nodes saw"
		if s.Witness != "" {
			who = "node " + s.Witness + " alone reported"
		}
		lines = append(lines,
			fmt.Sprintf("the epoch %s began %s ago, because %s that the store went back in time; farms ask every node "+
				"what it runs", s.Epoch, age, who))
	}
	switch {
	case w.Epoch != "" && w.Renews():
		lines = append(lines,
			fmt.Sprintf("%s report that the store went back in time; the farms renew the epoch",
				field.Few(w.By, 3, ", ")))
	case w.Epoch != "":
		lines = append(lines,
			fmt.Sprintf("node %s alone reports that again; farms wait until another node reports it, or for %s: look "+
				"at that node, and if it is wrong, stop its preparer, or: rcctl farm release-hold %s",
				w.By[0], w.Wait.Round(time.Second), w.By[0]))
	}
	for _, name := range slices.Sorted(maps.Keys(w.Ignored)) {
		lines = append(lines,
			fmt.Sprintf("the report of node %s that the store went back in time is ignored: %s; look at that node, "+
				"because somebody may have its token", name, w.Ignored[name]))
	}
	return lines
}
