package checker

import (
	"slices"
	"strings"
)

const keyLease = prefix + "elections/farm/lease/holder"

type holder struct {
	ID    string `json:"id"`
	Since string `json:"since"`
}

func (k *Key) holder() *holder { return record[holder](k, "elections") }

// tenures has the leaders by their first writes, each with its session and the time of its election.
type tenures []string

// leads judges P1 for records that belong to no controller: only the farms' leader writes them, under the fence of its
// lease and in its own name. The writes of two leaders do not mix.
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
		j.violated("P1", "not under the leader's fence", w.Index,
			"%s was written by a transaction that does not check the lease of the farms' leader", what)
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
		j.violated("P1", ruleLeadersMixed, w.Index, "the leader %s wrote again after %s had", now,
			j.tenures[len(j.tenures)-1])
	}
	j.tenures = append(j.tenures, now)
	j.result.Leaders = len(j.tenures)
}

func (j *judgement) noteFarms(w *Write) {
	for i := range w.Changes {
		if c := &w.Changes[i]; group(c.Key) == "farms" && c.After != nil {
			j.farms[strings.TrimPrefix(c.Key, prefix+"farms/")] = true
		}
	}
}

// removedNode returns the key of a node's record that a farm removes, or "". Operators may remove such records.
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

// ofNobody returns a changed key that only the leader may write, or "".
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
