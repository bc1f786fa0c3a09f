package scheduler

import "slices"

// History has the changes that made each of the last versions of the nodes' views.
type History struct {
	steps []historyStep
	size  int // number of all changes
}

type historyStep struct {
	version uint64
	changes []NodeChange
}

// maxHistory is how many changes are kept. For more changes it costs hardly more to look at all nodes.
const maxHistory = 2000

// Add adds the changes from the last version to this one.
func (h *History) Add(version uint64, changes []NodeChange) {
	h.steps, h.size = append(h.steps, historyStep{version, changes}), h.size+len(changes)
	for h.size > maxHistory {
		h.size -= len(h.steps[0].changes)
		h.steps = h.steps[1:]
	}
}

// Between returns the changes from one version to another, which may be older. ok: all of them are kept.
func (h *History) Between(from, to uint64) (changes []NodeChange, ok bool) {
	if from == to {
		return nil, true
	}
	first, last := min(from, to)+1, max(from, to)
	if len(h.steps) == 0 || h.steps[0].version > first || h.steps[len(h.steps)-1].version < last {
		return nil, false
	}
	at := first - h.steps[0].version
	for _, step := range h.steps[at : at+last-first+1] {
		changes = append(changes, step.changes...)
	}
	if to < from {
		slices.Reverse(changes)
		for i := range changes {
			changes[i].Was, changes[i].Is = changes[i].Is, changes[i].Was
		}
	}
	return changes, true
}
