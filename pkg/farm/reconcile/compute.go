package reconcile

// Compute decides everything about one controller. The package comment has the order of the steps.
func Compute(s *Snapshot) Plan {
	f := FactsOf(s)
	d := newDraft(f)
	room := newBudget(d)
	left, moving := departures{d}, moves{room}
	losing, draining := losses{moving}, &drains{moves: moving}

	left.forget()
	left.confirmStops()
	left.forgetSelfStopped()
	adoption{d}.adopt()
	waitsToStop := leftovers{d}.stop()
	repairs{d}.repair()
	losing.recordLost()
	waits := d.answer(d.release()) || waitsToStop

	switch {
	case f.RC.DeletedAt != nil:
		labelling{d}.carryOut()
		d.stopAll()
		// While holding, pods may run on nodes that have not reported yet (R1).
		d.plan.Finish = len(f.Pods) == 0 && len(d.plan.Changes) == 0 && f.Hold == "" && !waits
	case f.RC.Disabled:
		draining.drainsWait()
		labelling{d}.carryOut()
	default:
		draining.evictAll()
		moving.finishMoves()
		losing.replaceLost()
		secondNodes{room}.begin()
		(&scaling{budget: room}).scale()
		draining.transfer()
		upgrades{room}.upgrade()
		naming{room}.switchNames()
		labelling{d}.carryOut() // after all steps that choose pods: a label must not decide which pod stops
		labelling{d}.relabel()
		draining.drainsWait()
	}

	losing.recordGhosts()
	renewals{d}.renew()
	clocks{losing}.record()
	minimum{room}.guardMinimum()
	report{d, d.after()}.report()
	return d.plan
}
