// Package ownerless has a table of the kinds of records without an owner. To add a kind, add a name and a row.
package ownerless

import "github.com/rcfarm/rcfarm/pkg/rc"

// Facts are which records there are of a pod, of the pod on its node, and of its controller.
type Facts uint16

// The facts. The kind of a record is one of them, too.
const (
	Controller Facts = 1 << iota // the record of its controller or, of drops, of one of its unit
	Farm                         // the lock of its unit, held by a farm
	Placement                    // of the pod, on whichever node
	Siblings                     // placements of its controller
	Copy                         // the pod's placement, or a former copy, on the node
	Intent                       // of the pod on the node
	Report                       // of the pod on the node
	Share                        // of the node, reserved for the pod
	Orphan                       // the pod on the node's list of what runs there without a matching intent
	Named                        // it names its controller
	Drops                        // of a unit
	Node                         // the node's own record
	Preparer                     // it holds the lock of the node's record
)

// Name names a kind.
type Name string

// The kinds.
const (
	Unclaimed      Name = "Unclaimed"
	Stray          Name = "Stray"
	OrphanedIntent Name = "OrphanedIntent"
	OrphanedReport Name = "OrphanedReport"
	Unplaced       Name = "Unplaced"
	Running        Name = "Running"
	Adoptable      Name = "Adoptable"
	NoShare        Name = "NoShare"
	Nameless       Name = "Nameless"
	SharesEnd      Name = "SharesEnd"
	Leak           Name = "Leak"
	Suspect        Name = "Suspect"
	StrayDrops     Name = "StrayDrops"
	GoneNode       Name = "GoneNode"
)

// Kind is one kind of records without an owner.
type Kind struct {
	Name       Name
	Of         Facts // what the record is
	Has, Lacks Facts // which other records there must be, and must not be
	What       string
	Cure       string // who repairs it, or what an operator must do
	// Alert is the condition, Key with the controller's id the key, and Text the text of the alert. If Text is empty,
	// the caller makes it.
	Alert     rc.ConditionType
	Key, Text string
	Noun      string // for one record, in Text
	// Metric is the farm's gauge of their number, without its prefix, and Label its label, if any.
	Metric, Label string
}

const (
	orphaned     = "orphaned_records"
	orphanedText = "the controller {rc} has neither a record nor placements, but {records}, on {nodes}; they are " +
		"left as they are: write the record back, or stop and remove them with rcctl node sweep NODE"
)

// Kinds are all kinds. A record is of the first kind that fits.
var Kinds = []Kind{
	{
		Name: Unclaimed, Of: Controller, Lacks: Farm, Alert: rc.Unclaimed, Metric: "unclaimed_rcs",
		What: "a controller that no farm owns", Cure: "a farm whose selector matches claims it",
	},
	{
		Name: Stray, Of: Placement, Lacks: Controller, Alert: rc.Unreadable, Key: "pods/",
		What: "a placement whose controller has no record", Cure: "write the record back, or `rcctl node sweep NODE`",
		Text: "the controller {rc} has placements on {nodes} and no record; its pods are left as they are: write the " +
			"record back, or stop them with rcctl node sweep NODE",
	},
	{
		Name: OrphanedIntent, Of: Intent, Lacks: Controller | Placement, Alert: rc.Unreadable, Key: "orphaned/",
		Text: orphanedText, Noun: "intent",
		Metric: orphaned, Label: "intent", What: "an intent of a pod that has neither a controller nor a placement",
		Cure: "write the record back, or `rcctl node sweep NODE`; with `--sweep-orphans-after` the leader requests it",
	},
	{
		Name: OrphanedReport, Of: Report, Lacks: Controller | Placement, Alert: rc.Unreadable, Key: "orphaned/",
		Text: orphanedText, Noun: "report",
		Metric: orphaned, Label: "reality", What: "a report of such a pod",
		Cure: "as for the intent; without an intent, `rcctl node sweep NODE` removes it",
	},
	{
		Name: Unplaced, Of: Intent, Has: Controller, Lacks: Placement, Alert: rc.Unreadable, Key: "orphaned/",
		Noun:   "intent",
		Metric: orphaned, Label: "unplaced",
		What: "an intent of a pod without a placement, of a controller that has a record",
		Cure: "remove the intent: the owner adopts the pod",
		Text: "the controller {rc} has no placement for {records}, such as {key}: the nodes carry them out, " +
			"and no farm counts those pods; remove such a key, and the owner adopts the pod",
	},
	{
		Name: NoShare, Of: Intent, Lacks: Share,
		What: "an intent of a pod without a share in the node's reservation",
		Cure: "a farm asks the owner to reserve one",
	},
	{
		Name: Running, Of: Orphan, Lacks: Controller,
		What: "a pod that a node lists as an orphan, whose controller has no record",
		Cure: "write the record back, or `rcctl node sweep NODE`",
	},
	{
		Name: Adoptable, Of: Orphan, Has: Controller,
		What: "a pod that a node lists as an orphan, whose controller has one", Cure: "the owner adopts it",
	},
	{ // Lacks Orphan, because the share may belong to a pod that the node has not listed yet
		Name: Nameless, Of: Share, Lacks: Named | Orphan,
		What: "a share that names no controller",
		Cure: "none: it takes capacity until you remove it from `reservations/<node>`",
	},
	{
		Name: SharesEnd, Of: Share, Has: Intent, Lacks: Controller | Placement,
		What: "a share of a pod that has only an intent", Cure: "it is removed with the intent",
	},
	{
		Name: Leak, Of: Share, Has: Named, Lacks: Copy | Orphan,
		What: "a share of a pod without a placement or former copy on the node, which the node does not list as an " +
			"orphan",
		Cure: "if there is no intent either, the leader asks the owner to release it, as `rcctl node sweep NODE` does",
	},
	{ // found by a scan that reads no placements
		Name: Suspect, Of: Share, Has: Named, Lacks: Intent,
		What: "a share without an intent", Cure: "it may be leaked: the leader scans again, with placements",
	},
	{
		Name: StrayDrops, Of: Drops, Lacks: Controller,
		What: "drops of a unit without a controller", Cure: "the leader removes them",
	},
	{ // the janitor finds it, and checks the store for records that are left
		Name: GoneNode, Of: Node, Lacks: Preparer, Metric: "kept_nodes",
		What: "the records of a node whose machine is gone",
		Cure: "`rcctl node forget NODE`; with `--forget-node-after` the leader removes them once no pod is left there",
	},
}

// Labels are the labels of the metric of orphaned records.
var Labels = labels()

func labels() (all []string) {
	for _, k := range Kinds {
		if k.Metric == orphaned {
			all = append(all, k.Label)
		}
	}
	return all
}
