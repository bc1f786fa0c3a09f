package rollout_test

import (
	"encoding/json"

	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/rollout"
)

type snapshot struct {
	record rollout.Record
	rcs    map[string]rc.RC
}

func copied[T any](v T) T {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	var out T
	if err := json.Unmarshal(data, &out); err != nil {
		panic(err)
	}
	return out
}

func (w *world) snapshot() snapshot { return snapshot{copied(*w.record), copied(w.rcs)} }

// restore brings the records back. Pods go on, and their owners adopt them as they run.
func (w *world) restore(s snapshot) {
	w.epoch += "'"
	w.rcs, w.status = copied(s.rcs), map[string]*rc.Status{}
	record := copied(s.record)
	w.record = &record
	w.bounds(record)
	for _, p := range w.pods {
		p.foundAt = w.rcs[p.rc].Generation
	}
	for id := range w.rcs {
		w.holding[id] = w.rnd.Intn(2) == 0
	}
	w.log("restore")
}
