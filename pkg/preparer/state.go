package preparer

import (
	"cmp"
	"slices"

	"github.com/rcfarm/rcfarm/pkg/pod"
)

// PodState is where a pod is between its accepted intent and its processes. A pod has one state at a time. The table
// steps has all changes of state.
type PodState string

// The states are not on the disk: firstState derives the first one from the pod's record.
const (
	Behind    PodState = "behind"    // the processes differ from the record, or were not yet compared with the record
	Up        PodState = "up"        // the processes of the installed version were started: services may be registered
	Spent     PodState = "spent"     // runs at most once, was started before; how it ended is unknown
	Suspended PodState = "suspended" // the pod must not run before its intent is read again
	Stopping  PodState = "stopping"  // a stop was accepted
	Stopped   PodState = "stopped"   // no process of the pod runs, and the disk has a tombstone
	Collected PodState = "collected" // stopped, and only the pod's tombstone and volumes are left
)

// Event is what changes the state of a pod.
type Event string

// The events.
const (
	RunAccepted  Event = "run accepted"  // an intent to run was accepted, and is on the disk
	StopAccepted Event = "stop accepted" // an intent to stop was accepted, and is on the disk
	Replaced     Event = "replaced"      // another version was installed, or processes of the pod will be stopped
	Launched     Event = "launched"      // the runtime has the processes of the installed version, and no others
	Ran          Event = "ran"           // processes are missing, but the version must not start a second time
	Barred       Event = "barred"        // the pod must not run: Consul silent, node's name lost, or old epoch
	Freed        Event = "freed"         // the pod may run
	Buried       Event = "buried"        // the tombstone is on the disk, because no process of the pod runs
	Cleared      Event = "cleared"       // the pod's directories were removed
	Littered     Event = "littered"      // some of the pod's directories are still there
)

type step struct {
	from []PodState
	on   Event
	to   PodState // empty: the state does not change
	why  string
}

var (
	alive = []PodState{Behind, Up, Spent} // the pod may run
	ended = []PodState{Stopped, Collected}
)

// steps has all allowed changes. If an event has no row for the pod's state, the code has a defect.
var steps = []step{
	{
		append(alive[:3:3], Suspended), RunAccepted, "",
		"its processes run on until they are compared, or another version is installed",
	},
	{
		append(ended[:2:2], Stopping), RunAccepted, Behind,
		"a higher revision starts a pod that was stopped or was to stop; some of its processes may run",
	},
	{append(alive[:3:3], Suspended), StopAccepted, Stopping, "all its processes are stopped"},
	{append(ended[:2:2], Stopping), StopAccepted, "", "the node confirms the stop of the higher revision"},

	{alive, Replaced, Behind, "its services are those of the earlier processes until these stop"},
	{append(ended[:2:2], Stopping, Suspended), Replaced, "", "its processes are being stopped, or none runs"},
	{alive, Launched, Up, "the wanted processes were started, or ran already"},
	{alive, Ran, Spent, "its missing processes are not started again"},

	{append(alive[:3:3], Suspended), Barred, Suspended, "it may run elsewhere"},
	{alive, Freed, "", "it was not suspended"},
	{[]PodState{Suspended}, Freed, Behind, "its intent was read again"},

	{[]PodState{Stopping}, Buried, Stopped, "only a tombstone on the disk confirms a stop (P5)"},
	{ended, Buried, "", "the higher revision is on the disk"},
	{ended, Cleared, Collected, "it was stopped for long enough"},
	{ended, Littered, Stopped, "it is not time yet, or a directory could not be removed or came back"},
}

// After returns the state after an event; ok is false if no row allows the event.
func (p PodState) After(on Event) (next PodState, ok bool) {
	for i := range steps {
		if row := &steps[i]; row.on == on && slices.Contains(row.from, p) {
			return cmp.Or(row.to, p), true
		}
	}
	return p, false
}

func (p PodState) up() bool { return p == Up || p == Spent }

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
