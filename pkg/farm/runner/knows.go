package runner

import "time"

// knowledge is what the last look at a rollout has seen, by which the next one is spared where it would see the same: whoever changes
// something about a rollout writes its record or rings its bell.
type knowledge struct {
	record, bell uint64    // indices; zero: the look did not go well
	due          time.Time // when it asked for another one; zero: it did not
	asked        bool      // for another reason, since it began
	rung         uint64    // the bell as this farm's own owners rang it
}

// want asks for a look at a rollout although its bell did not ring. The caller holds the mutex.
func (r *Runner) want(service string) {
	if c := r.carried[service]; c != nil {
		c.knows.asked = true
	}
	r.queue.Add(service)
}

// begins is for the beginning of a look, before anything is read.
func (r *Runner) begins(c *carried) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.knows = knowledge{rung: c.knows.rung}
}

// stepped notes what a look that went well has seen, its own write among it: what a decision makes asks for no other one.
func (r *Runner) stepped(c *carried, record, bell uint64, again time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.knows.record, c.knows.bell = record, bell
	if again > 0 {
		c.knows.due = time.Now().Add(again)
	}
}

// idle reports whether a look now would see what the last one has seen, and then when one is due, zero for never. The queue keeps the first
// of several times only, so that whoever spares a look must ask for the next one.
func (r *Runner) idle(service string, c *carried) (idle bool, left time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, rec := &c.knows, r.records[service]
	if !k.due.IsZero() {
		left = time.Until(k.due)
	}
	if k.record == 0 || k.asked || rec == nil || !k.due.IsZero() && left <= 0 {
		return false, 0
	}
	return rec.Index <= k.record && max(k.rung, r.seen.Bells[service]) <= k.bell, left
}
