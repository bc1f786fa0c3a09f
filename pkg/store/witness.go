package store

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/node"
)

// A node that saw the store go back in time reports that in its record, with the epoch that was current. Farms then
// renew the epoch, and all daemons start over. A node's token can write such a report at any time, so this code decides
// which reports are accepted (docs/design/restores.md).

// The bounds for these reports.
const (
	// maxAhead is how far a reported epoch may be ahead of the reader's clock, or of the present epoch if that is
	// later. A farm whose clock is behind must accept reports about its own epoch.
	maxAhead = 24 * time.Hour
	// SoleWitness: if the report of one node alone renewed the epoch, its next report needs a second witness for this
	// long.
	SoleWitness = time.Hour
)

// epochTime returns when an epoch was made, by its maker's clock; ok is false if the text is not an epoch.
func epochTime(epoch string) (at time.Time, ok bool) {
	id, ok := epochID(epoch)
	return ulid.Time(id.Time()), ok
}

func epochID(epoch string) (id ulid.ULID, ok bool) {
	id, err := ulid.ParseStrict(strings.ToUpper(epoch))
	return id, err == nil && strings.ToLower(id.String()) == epoch
}

// Witnesses are the nodes that report that the store went back in time.
type Witnesses struct {
	Epoch string   // the latest reported epoch; empty: there is no valid report
	By    []string // names of the reporting nodes, sorted
	// Wait is how long a farm waits for a second witness; see SoleWitness.
	Wait    time.Duration
	Ignored map[string]string // by node: why its report cannot be true
}

// Renews reports whether the epoch must be renewed.
func (w *Witnesses) Renews() bool { return w.Epoch != "" && w.Wait <= 0 }

// WitnessesOf evaluates reports of living nodes about the schema. known is how long the reader has known the epoch.
func WitnessesOf(s Schema, nodes []*node.View, now time.Time, known time.Duration) Witnesses {
	w := Witnesses{Ignored: map[string]string{}}
	latest := now
	if made, ok := epochTime(s.Epoch); ok && made.After(now) {
		latest = made
	}
	for _, v := range nodes {
		switch made, ok := epochTime(v.WentBack); {
		case !v.Alive || v.WentBack == "" || v.Ops.HoldReleased == s.Epoch:
		case !ok:
			w.Ignored[v.Name] = fmt.Sprintf(
				"regressed: %q is not valid; allowed: an epoch, which is a ULID in lower case",
				field.Cut(v.WentBack, maxShownEpoch))
		case made.Sub(latest) > maxAhead:
			w.Ignored[v.Name] = fmt.Sprintf("regressed: %q is of %s; allowed: an epoch that is at most a day ahead",
				v.WentBack, made.UTC().Format(time.RFC3339))
		case v.WentBack >= s.Epoch:
			w.Epoch = max(w.Epoch, v.WentBack)
			w.By = append(w.By, v.Name)
		}
	}
	slices.Sort(w.By)
	if len(w.By) == 1 && w.By[0] == s.Witness {
		w.Wait = SoleWitness - known
	}
	return w
}

const maxShownEpoch = 60

// Witness returns Schema.Witness of the next schema.
func (w *Witnesses) Witness() string {
	if len(w.By) == 1 {
		return w.By[0]
	}
	return ""
}
