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

// A node that saw the store go back in time says so in its record, with the epoch that was current. Farms renew the
// epoch on that word, which makes all of them start over. One node's token can write such a word whenever it likes, so
// this says which words count (ADR 9).

// The bounds of what nodes may say.
const (
	// maxAhead is how far ahead an epoch may be that a node names: of the reader's clock, or of the epoch in force if that
	// is later. So a farm whose clock is behind heeds what nodes say of an epoch that it works with itself.
	maxAhead = 24 * time.Hour
	// SoleWitness is for how long the node on whose word alone the epoch was renewed needs another witness for the next
	// one.
	SoleWitness = time.Hour
)

// epochTime returns when an epoch was made, by its maker's clock; ok is false for what is no epoch.
func epochTime(epoch string) (at time.Time, ok bool) {
	id, ok := epochID(epoch)
	return ulid.Time(id.Time()), ok
}

func epochID(epoch string) (id ulid.ULID, ok bool) {
	id, err := ulid.ParseStrict(strings.ToUpper(epoch))
	return id, err == nil && strings.ToLower(id.String()) == epoch
}

// Witnesses are the nodes that say that the store went back in time, as a farm heeds them.
type Witnesses struct {
	Epoch   string            // the latest that they say it went back from; empty: nobody says so who counts
	By      []string          // by name, sorted
	Wait    time.Duration     // above zero: they are one node, on whose word alone the present epoch began, and so long another witness is waited for
	Ignored map[string]string // nodes whose word cannot be so, and why
}

// Renews reports whether the epoch is to be renewed on their word.
func (w *Witnesses) Renews() bool { return w.Epoch != "" && w.Wait <= 0 }

// WitnessesOf weighs what living nodes say about the schema in force; released are those that operators do not want to
// wait for in this epoch. now is the reader's clock; known is for how long it has known the epoch, by the clock that
// nobody sets.
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
			w.Ignored[v.Name] = fmt.Sprintf("regressed: %q is not valid; allowed: an epoch, which is a ULID in lower case", field.Cut(v.WentBack, maxShownEpoch))
		case made.Sub(latest) > maxAhead:
			w.Ignored[v.Name] = fmt.Sprintf("regressed: %q is of %s; allowed: an epoch that is at most a day ahead", v.WentBack, made.UTC().Format(time.RFC3339))
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

// maxShownEpoch bounds what is repeated of an epoch that is none, in bytes.
const maxShownEpoch = 60

// Witness returns what the schema that follows on their word says of them: the node, if there is only one.
func (w *Witnesses) Witness() string {
	if len(w.By) == 1 {
		return w.By[0]
	}
	return ""
}
