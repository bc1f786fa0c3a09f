package checker

import (
	"slices"
	"strings"
)

// keyLease is the lock of the farms' leader, and holder what it says.
const keyLease = prefix + "elections/farm/lease/holder"

type holder struct {
	ID    string `json:"id"`
	Since string `json:"since"`
}

func (k *Key) holder() *holder { return record[holder](k, "elections") }

// tenures are the leaders that have written something, in the order of their first writes: who, under which session, elected when.
type tenures []string

// leads is P1 for what belongs to no controller: only the leader of the farms writes it, under the fence of its lease, in its own name; and all
// that one leader writes is before all that the next one does.
func (j *judgement) leads(w *Write) {
	j.noteFarms(w)
	what := w.ofNobody()
	if what == "" {
		what = j.removedNode(w)
	}
	fenced := w.has(keyLease, "check-session") && w.has(keyLease, "check-index")
	if what == "" && !fenced {
		return
	}
	j.looked("P1 leader")
	if !fenced {
		j.violated("P1", "not under the leader's fence", w.Index, "%s was written by a transaction that does not check the lease of the farms' leader", what)
		return
	}
	lease := w.before(keyLease)
	if lease == nil || lease.Session == "" || lease.holder() == nil {
		j.violated("P1", ruleNoLeader, w.Index, "%s was written while no farm led", what)
		return
	}
	for i := range w.Changes {
		if a := w.Changes[i].After.audit(); a != nil && a.Who != lease.holder().ID {
			j.violated("P1", ruleOtherLeader, w.Index, "%s wrote under the lease of %s", a.Who, lease.holder().ID)
		}
	}
	now := strings.Join([]string{lease.holder().ID, lease.Session, lease.holder().Since}, " ")
	if n := len(j.tenures); n > 0 && j.tenures[n-1] == now {
		return
	}
	if slices.Contains(j.tenures, now) {
		j.violated("P1", ruleLeadersMixed, w.Index, "the leader %s wrote again after %s had", now, j.tenures[len(j.tenures)-1])
	}
	j.tenures = append(j.tenures, now)
	j.result.Leaders = len(j.tenures)
}

// noteFarms remembers who was a farm.
func (j *judgement) noteFarms(w *Write) {
	for i := range w.Changes {
		if c := &w.Changes[i]; group(c.Key) == "farms" && c.After != nil {
			j.farms[strings.TrimPrefix(c.Key, prefix+"farms/")] = true
		}
	}
}

// removedNode names the record of a node that the transaction removes in the name of a farm; "": none. Operators remove such records, too.
func (j *judgement) removedNode(w *Write) (key string) {
	byFarm := false
	for i := range w.Changes {
		c := &w.Changes[i]
		if group(c.Key) == "nodes" && c.Before != nil && c.After == nil {
			key = c.Key
		}
		if a := c.After.audit(); a != nil && j.farms[a.Who] {
			byFarm = true
		}
	}
	if !byFarm {
		return ""
	}
	return key
}

// ofNobody names what the transaction changes that belongs to no controller and is the leader's alone; "": nothing.
func (w *Write) ofNobody() string {
	for i := range w.Changes {
		c := &w.Changes[i]
		switch g := group(c.Key); {
		case g == "incidents", g == "gone":
			return c.Key
		case c.After == nil && (g == "audit" || g == "manifests"):
			return c.Key
		case g == "status" && c.After != nil && w.speaksForNobody(c.controllerOf()):
			return c.Key
		}
	}
	return ""
}
