package scheduler

import "slices"

// History is how the views of the nodes became what they are: the changes that made each of the last versions.
type History struct {
	steps []historyStep
	size  int // changes in all
}

type historyStep struct {
	version uint64
	changes []NodeChange
}

// maxHistory is how many changes are kept. Where there were more, looking at all nodes costs hardly more.
const maxHistory = 2000

// Add notes what made a version, the one after the last.
func (h *History) Add(version uint64, changes []NodeChange) {
	h.steps, h.size = append(h.steps, historyStep{version, changes}), h.size+len(changes)
	for h.size > maxHistory {
		h.size -= len(h.steps[0].changes)
		h.steps = h.steps[1:]
	}
}

// Between returns the changes that lead from one version to another, which may be the older one; ok is false where that is not
// known any more.
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
