package inspect

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// WitnessLines says for people which nodes say that the store went back in time, what farms did about it in the last
// hour, and what they wait for.
func WitnessLines(s *store.Schema, w *store.Witnesses, now time.Time) []string {
	var lines []string
	if age := now.Sub(s.CreatedAt).Round(time.Second); s.WentBack && age < store.SoleWitness {
		who := "a farm or several nodes saw"
		if s.Witness != "" {
			who = "node " + s.Witness + " alone said"
		}
		lines = append(lines, fmt.Sprintf("the epoch %s began %s ago, as %s that the store went back in time; farms ask every node what it runs", s.Epoch, age, who))
	}
	switch {
	case w.Epoch != "" && w.Renews():
		lines = append(lines, fmt.Sprintf("%s say that the store went back in time; the farms renew the epoch", field.Few(w.By, 3, ", ")))
	case w.Epoch != "":
		lines = append(lines, fmt.Sprintf("node %s alone says so again; farms wait for another witness, or for %s: look after that node, and if it is wrong stop its preparer, or rcctl farm release-hold %s",
			w.By[0], w.Wait.Round(time.Second), w.By[0]))
	}
	for _, name := range slices.Sorted(maps.Keys(w.Ignored)) {
		lines = append(lines, fmt.Sprintf("what node %s says of a store that went back in time is ignored: %s; look after that node, whose token somebody may have", name, w.Ignored[name]))
	}
	return lines
}
