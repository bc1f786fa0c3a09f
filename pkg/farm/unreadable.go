package farm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// leaderReporter alerts people, while the farm leads, to problems without an owner who could alert. The alerts are
// stored, so that the next leader continues from them.
type leaderReporter struct {
	*core
	unreadable unreadables
	swept      wait.Signal // a sweep has ended
	// notified has, by controller, the alerts that were sent and are not stored yet. Only afterSweeps uses it.
	notified map[string]map[string]bool

	mu   sync.Mutex
	last *swept
}

func newLeaderReporter(c *core) *leaderReporter {
	return &leaderReporter{core: c, swept: wait.NewSignal()}
}

// unreadables has the records that cannot be read, and the findings that only the leader searches for.
type unreadables struct {
	mu       sync.Mutex
	at       map[string]map[string]string // by watch or kind of finding: errors by key
	changed  bool
	searched map[string]bool // kinds of findings that this leader has searched for
}

const (
	straysKind   = "strays"
	unownedKind  = "unowned"
	orphanedKind = "orphaned"
	gateKind     = "gate"
)

// setSearched replaces the findings of a kind that only the leader searches for.
func (u *unreadables) setSearched(kind string, errs map[string]string) {
	u.set(kind, errs)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.searched == nil {
		u.searched = map[string]bool{}
	}
	u.searched[kind], u.changed = true, u.changed || !u.searched[kind]
}

// forget drops such findings when the farm stops leading.
func (u *unreadables) forget(kind string) {
	u.set(kind, nil)
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.searched, kind)
}

// complete reports whether the leader has searched for all kinds. If so, an incident without a finding is over.
func (u *unreadables) complete() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.searched[straysKind] && u.searched[unownedKind] && u.searched[orphanedKind] && u.searched[gateKind]
}

func corruptKeys(found []error) map[string]string {
	errs := map[string]string{}
	for _, err := range found {
		if corrupt, is := errors.AsType[*store.CorruptError](err); is {
			errs[corrupt.Key] = corrupt.Error()
		}
	}
	return errs
}

func (u *unreadables) set(where string, errs map[string]string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if maps.Equal(u.at[where], errs) {
		return
	}
	if u.at == nil {
		u.at = map[string]map[string]string{}
	}
	u.at[where], u.changed = errs, true
}

// all also reports whether the findings have changed since the last call.
func (u *unreadables) all() (errs map[string]string, changed bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	errs = map[string]string{}
	for _, some := range u.at {
		maps.Copy(errs, some)
	}
	changed, u.changed = u.changed, false
	return errs, changed
}

// unreadableEvery is how often the leader checks whether it has to alert.
const unreadableEvery = time.Second

// alertUnreadable alerts to unreadable records that belong to no controller. The record of incidents has the alerts
// that were sent, so the next leader does not repeat them, and alerts people when an incident is over.
func (s *leaderReporter) alertUnreadable(ctx context.Context, as LeaderStore) error {
	defer s.cfg.Metrics.Alerting(recordsName, nil)
	notified := map[string]bool{}
	next := time.Now() // this leader has not checked yet
	for {
		now := time.Now()
		if errs, changed := s.unreadable.all(); changed || !next.IsZero() && !now.Before(next) {
			pending, again, err := s.alertRecords(ctx, as, errs, notified)
			if err != nil && ctx.Err() == nil {
				s.log.WithError(err).Warn("cannot store which alerts about unreadable records were sent")
			}
			notified, next = pending, time.Time{}
			if again > 0 {
				next = now.Add(again)
			}
		}
		if err := wait.Pause(ctx, unreadableEvery); err != nil {
			return err
		}
	}
}

// recordsName stands for these records in the metric of alerts.
const recordsName = "records"

// alertRecords stores the incidents, and then sends the alerts that are due. It returns the alerts that are not stored
// yet, and when to check again; zero: after the next change.
func (s *leaderReporter) alertRecords(
	ctx context.Context, as LeaderStore, errs map[string]string, notified map[string]bool,
) (pending map[string]bool, again time.Duration, err error) {
	rec, err := as.ReadIncidents(ctx)
	if err != nil {
		return notified, unreadableEvery, err
	}
	now := time.Now().UTC()
	found := findings{texts: together(rec.Value.Records, errs), complete: s.unreadable.complete()}
	next, tells, active, again := trackRecords(rec.Value.Records, found, now, notified)
	if !reflect.DeepEqual(next, rec.Value.Records) && len(next)+len(rec.Value.Records) > 0 {
		rec.Value.Records = next
		err := as.WriteIncidents(ctx, rec)
		if errors.Is(err, store.ErrConflict) {
			return notified, unreadableEvery, nil // a farm of an older version wrote, because it does not know leaders
		}
		if err != nil {
			return notified, unreadableEvery, err
		}
	}
	pending, _, _ = s.kit.notifier.NotifyDue(ctx, "", tells, notified)
	s.cfg.Metrics.Alerting(recordsName, active)
	if len(tells) > 0 {
		again = unreadableEvery // the next check stores what was sent
	}
	return pending, again, nil
}

// One record has all incidents, so their number is bounded.
const (
	maxRecords  = 100            // unreadable records with their own incident
	moreRecords = "more records" // incident key of all others together
)

// together returns the reasons by incident key. Further records get own incidents only if all of them can. Otherwise
// the leader would raise one incident after the other while people mend the records.
func together(before map[string][]rc.Incident, errs map[string]string) map[string]string {
	reasons, fresh := map[string]string{}, []string{}
	for key, text := range errs {
		if _, known := before[key]; known {
			reasons[key] = text
		} else {
			fresh = append(fresh, key)
		}
	}
	slices.Sort(fresh)
	_, more := before[moreRecords]
	free := maxRecords - len(before)
	if more {
		free++ // moreRecords is one of the keys in before
	}
	if more && len(fresh) > free {
		free = 0
	}
	alone := min(len(fresh), max(free, 0))
	for _, key := range fresh[:alone] {
		reasons[key] = errs[key]
	}
	if rest := fresh[alone:]; len(rest) > 0 {
		reasons[moreRecords] = fmt.Sprintf("%d more records cannot be read: %s", len(rest), field.Few(rest, 3, ", "))
	}
	return reasons
}

type findings struct {
	texts    map[string]string // by incident key
	complete bool              // the leader has searched for all findings, so an incident without a finding is over
}

// trackRecords updates the incidents. again is the time until an alert is due; zero: none is due.
func trackRecords(
	before map[string][]rc.Incident, found findings, now time.Time, notified map[string]bool,
) (next map[string][]rc.Incident, tells []alert.Notification, active []rc.ConditionType, again time.Duration) {
	keys := map[string]bool{}
	for key := range before {
		keys[key] = true
	}
	for key := range found.texts {
		keys[key] = true
	}
	next = map[string][]rc.Incident{}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		was, is := &rc.Status{RCID: key, Incidents: before[key]}, &rc.Status{RCID: key}
		reason, corrupt := found.texts[key]
		if !corrupt && !found.complete {
			next[key] = before[key]
			active = append(active, alert.Active(was, now)...)
			continue
		}
		if corrupt {
			is.Conditions = rc.SetCondition(nil, kindOf(key), true, reason, now)
		}
		var due time.Duration
		is.Incidents, due = alert.Track(alert.Input{Before: was, After: is, Now: now, Notified: notified})
		if due > 0 && (again == 0 || due < again) {
			again = due
		}
		if len(is.Incidents) > 0 {
			next[key] = is.Incidents
		}
		tells = append(tells, alert.Due(is, now)...)
		active = append(active, alert.Active(is, now)...)
	}
	return next, tells, active, again
}

func kindOf(key string) rc.ConditionType {
	switch key {
	case electionKey:
		return rc.ElectionTrouble
	case gateKey:
		return rc.GateHeld
	default:
		return rc.Unreadable
	}
}
