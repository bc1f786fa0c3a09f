package preparer

import (
	"cmp"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// PodState is where a pod is between what was accepted for it and what runs of it. It has one at a time; steps says which follows which.
type PodState string

// The states. What of them must survive a restart is in the pod's record, from which firstState finds the way back.
const (
	Behind    PodState = "behind"    // what it should be and what runs of it differ, or were not compared yet
	Up        PodState = "up"        // the processes of the installed version were started, so that its services may be registered
	Spent     PodState = "spent"     // likewise, and it runs at most once: it is not started again, and nobody saw how it ended
	Suspended PodState = "suspended" // it must not run before its intent is read again
	Stopping  PodState = "stopping"  // a stop was accepted
	Stopped   PodState = "stopped"   // nothing of it runs, and that is on the disk
	Collected PodState = "collected" // and nothing is left of it but a tombstone, and volumes
)

// Event is what has a pod change its state.
type Event string

// The events.
const (
	ToldToRun  Event = "told to run"  // such an intent was accepted, and is on the disk
	ToldToStop Event = "told to stop" // likewise
	Replaced   Event = "replaced"     // another version was installed, or processes of it are about to be stopped
	Launched   Event = "launched"     // the runtime has the processes of the installed version, and no others
	Ran        Event = "ran"          // likewise, of a version that must not be started a second time
	Barred     Event = "barred"       // it must not run: Consul was away for too long, or the node's name is lost
	Freed      Event = "freed"        // it may run
	Buried     Event = "buried"       // that nothing of it runs was written to the disk
	Cleared    Event = "cleared"      // what it left on the disk was removed
	Littered   Event = "littered"     // something of that is there
)

// step is one row of the table.
type step struct {
	from []PodState
	on   Event
	to   PodState // empty: it stays what it is
	why  string
}

var (
	alive = []PodState{Behind, Up, Spent} // and may run
	ended = []PodState{Stopped, Collected}
)

// steps is all that may follow. What is not here cannot be.
var steps = []step{
	{append(alive[:3:3], Suspended), ToldToRun, "", "nothing is touched before it is compared, or another version is installed"},
	{append(ended[:2:2], Stopping), ToldToRun, Behind, "a higher revision starts what was stopped, or was to be; something of it may run"},
	{append(alive[:3:3], Suspended), ToldToStop, Stopping, "whatever runs of it is stopped"},
	{append(ended[:2:2], Stopping), ToldToStop, "", "the higher revision is what is confirmed"},

	{alive, Replaced, Behind, "its services are those of what was there until their processes go"},
	{append(ended[:2:2], Stopping, Suspended), Replaced, "", "the processes that are stopped are all that it has"},
	{alive, Launched, Up, "what should run was started, or is there after all"},
	{alive, Ran, Spent, "what is gone is not started again"},

	{append(alive[:3:3], Suspended), Barred, Suspended, "it may run elsewhere"},
	{alive, Freed, "", "it was not suspended"},
	{[]PodState{Suspended}, Freed, Behind, "its intent was read again"},

	{[]PodState{Stopping}, Buried, Stopped, "a stop is confirmed by what is on the disk (P5)"},
	{ended, Buried, "", "the higher revision is on the disk"},
	{ended, Cleared, Collected, "it was stopped for long enough"},
	{ended, Littered, Stopped, "it is not time yet, something could not be removed, or came back"},
}

// After returns the state that follows; ok is false where the event cannot be.
func (s PodState) After(on Event) (next PodState, ok bool) {
	for i := range steps {
		if row := &steps[i]; row.on == on && slices.Contains(row.from, s) {
			return cmp.Or(row.to, s), true
		}
	}
	return s, false
}

// up reports whether the services of a pod may be registered.
func (s PodState) up() bool { return s == Up || s == Spent }

// firstState is that of a pod of which only its record is known.
func firstState(rec *Record) PodState {
	switch {
	case rec.StoppedAt != nil:
		return Stopped
	case rec.Intent.State == pod.Stopped:
		return Stopping
	default:
		return Behind
	}
}
