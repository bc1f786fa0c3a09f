package preparer

import "github.com/rcfarm/rcfarm/pkg/pod"

// PodState is where a pod is between what was accepted for it and what runs of it. It has one at a time; steps says which follows which.
type PodState string

// The states. What of them must survive a restart is in the pod's record, from which firstState finds the way back.
const (
	Behind    PodState = "behind"    // what it should be and what runs of it differ, or were not compared yet
	Up        PodState = "up"        // the processes of the installed version were started, so that its services may be registered
	Spent     PodState = "spent"     // likewise, and it runs at most once: it is not started again, and nobody saw how it ended
	Held      PodState = "held"      // it must not run before its intent is read again
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
	from PodState
	on   Event
	to   PodState
	why  string
}

// steps is all that may follow. What is not here cannot be.
var steps = []step{
	{Behind, ToldToRun, Behind, "the newer intent is compared with what runs"},
	{Up, ToldToRun, Up, "what runs is not touched before something else is installed"},
	{Spent, ToldToRun, Spent, "the same digest is not started again, another one is installed first"},
	{Held, ToldToRun, Held, "whether it may run is asked when it is compared"},
	{Stopping, ToldToRun, Behind, "it is to run after all, and something of it may"},
	{Stopped, ToldToRun, Behind, "a higher revision starts what was stopped"},
	{Collected, ToldToRun, Behind, "likewise, from nothing"},

	{Behind, ToldToStop, Stopping, "whatever runs of it is stopped"},
	{Up, ToldToStop, Stopping, "likewise"},
	{Spent, ToldToStop, Stopping, "something of it may run beside what ended"},
	{Held, ToldToStop, Stopping, "likewise"},
	{Stopping, ToldToStop, Stopping, "the higher revision is what is confirmed"},
	{Stopped, ToldToStop, Stopped, "likewise; nothing has to be stopped"},
	{Collected, ToldToStop, Collected, "likewise"},

	{Behind, Replaced, Behind, "the version is not launched yet"},
	{Up, Replaced, Behind, "the service stays that of the earlier version until its processes go"},
	{Spent, Replaced, Behind, "another version may be started"},
	{Held, Replaced, Held, "what must not run is stopped"},
	{Stopping, Replaced, Stopping, "its services go before its processes"},
	{Stopped, Replaced, Stopped, "the runtime had something of it again"},
	{Collected, Replaced, Collected, "likewise"},

	{Behind, Launched, Up, "what should run was started"},
	{Up, Launched, Up, "nothing was missing, or is not any more"},
	{Spent, Launched, Up, "the runtime has its processes after all"},
	{Behind, Ran, Spent, "what is gone is not started again"},
	{Up, Ran, Spent, "likewise"},
	{Spent, Ran, Spent, "likewise"},

	{Behind, Barred, Held, "it may run elsewhere"},
	{Up, Barred, Held, "likewise"},
	{Spent, Barred, Held, "likewise"},
	{Held, Barred, Held, "nothing has changed"},
	{Behind, Freed, Behind, "it never was held"},
	{Up, Freed, Up, "likewise"},
	{Spent, Freed, Spent, "likewise"},
	{Held, Freed, Behind, "its intent was read again"},

	{Stopping, Buried, Stopped, "a stop is confirmed by what is on the disk (P5)"},
	{Stopped, Buried, Stopped, "at a higher revision"},
	{Collected, Buried, Collected, "likewise"},
	{Stopped, Cleared, Collected, "it was stopped for long enough"},
	{Collected, Cleared, Collected, "it was looked at again"},
	{Stopped, Littered, Stopped, "it is not time yet, or it could not be removed"},
	{Collected, Littered, Stopped, "something came back"},
}

// After returns the state that follows; ok is false where the event cannot be.
func (s PodState) After(on Event) (next PodState, ok bool) {
	for i := range steps {
		if steps[i].from == s && steps[i].on == on {
			return steps[i].to, true
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
