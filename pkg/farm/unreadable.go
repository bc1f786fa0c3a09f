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
	"github.com/rcfarm/rcfarm/pkg/farm/reconcile"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
	"github.com/rcfarm/rcfarm/pkg/wait"
)

// sayUnreadable says in the status of a controller that its record, or a placement, cannot be read, and alerts. Nothing else
// is done about the controller until it can be.
func (ps *writer) sayUnreadable(ctx context.Context, head store.Head, failure error) error {
	if ps.mem.recordless {
		return nil
	}
	now := time.Now().UTC()
	st := rc.Status{RCID: ps.id}
	if head.Status != nil {
		st = *head.Status
		st.Conditions = slices.Clone(st.Conditions)
	}
	st.Owner, st.LastError = ps.kit.farm, reconcile.Few(textsOf(failure))
	st.Conditions = rc.SetCondition(st.Conditions, rc.Unclaimed, false, "", now)
	st.Conditions = rc.SetCondition(st.Conditions, rc.Unreadable, true, st.LastError, now)
	record := &head.RC.Value
	st.Incidents, _ = alert.Track(alert.Input{
		Before: head.Status, After: &st, Now: now, Notified: ps.mem.notified, Quiet: record.Disabled || record.DeletedAt != nil,
	})
	if statusDiffers(head.Status, &st) {
		write := &batch{Batch: store.Batch{Fence: ps.mem.fence, RCID: ps.id, RCIndex: head.RC.Index, Status: &st}}
		ps.stale = true
		if err := ps.commit(ctx, write); err != nil {
			return ps.unit.afterFailure(ctx, err)
		}
	}
	ps.alert(ctx, &reconcile.Plan{Status: st})
	return nil
}

// speaker tells, while the farm leads, what no owner can: controllers that nobody owns, placements without a controller, records that cannot
// be read. What is told, every farm knows: whoever leads next goes on from that.
type speaker struct {
	*core
	unreadable unreadables
	swept      wait.Signal                // a sweep has ended
	notified   map[string]map[string]bool // by controller, what was told and is not stored yet; only the loop after sweeps uses it

	mu   sync.Mutex
	last *swept
}

func newSpeaker(c *core) *speaker { return &speaker{core: c, swept: wait.NewSignal()} }

// unreadables are the records in the farm's view of the cluster that cannot be read.
type unreadables struct {
	mu      sync.Mutex
	at      map[string]map[string]string // by watch or the like: errors by key
	changed bool
	looked  map[string]bool // what only the leader looks for, once it has
}

// Kinds of findings that only the leader looks for.
const (
	straysKind   = "strays"
	unownedKind  = "unowned"
	orphanedKind = "orphaned"
	gateKind     = "gate"
)

// found is say for such a kind.
func (u *unreadables) found(kind string, errs map[string]string) {
	u.say(kind, errs)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.looked == nil {
		u.looked = map[string]bool{}
	}
	u.looked[kind], u.changed = true, u.changed || !u.looked[kind]
}

// forget is for a farm that leads no more: it finds nothing of such kinds.
func (u *unreadables) forget(kind string) {
	u.say(kind, nil)
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.looked, kind)
}

// complete reports whether all such kinds were looked for, so that what is not there is over.
func (u *unreadables) complete() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.looked[straysKind] && u.looked[unownedKind] && u.looked[orphanedKind] && u.looked[gateKind]
}

// corruptKeys returns what is said about unreadable records, by their keys.
func corruptKeys(found []error) map[string]string {
	errs := map[string]string{}
	for _, err := range found {
		if corrupt, is := errors.AsType[*store.CorruptError](err); is {
			errs[corrupt.Key] = corrupt.Error()
		}
	}
	return errs
}

// say replaces what is told of one kind of finding: reasons by key.
func (u *unreadables) say(where string, errs map[string]string) {
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

// all returns every error by key, and whether they have changed since the last call.
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

// unreadableEvery is how often a farm looks whether something has to be told about records that cannot be read. Consul is
// asked only when it has.
const unreadableEvery = time.Second

// tellUnreadable alerts about records that belong to no controller: nodes, and those about the cluster. What it told is kept in Consul, so
// that the next leader neither repeats nor forgets it.
func (f *speaker) tellUnreadable(ctx context.Context, as Duties) error {
	defer f.cfg.Metrics.Alerting(recordsName, nil)
	told := map[string]bool{}
	next := time.Now() // this leader has not looked yet
	for {
		now := time.Now()
		if errs, changed := f.unreadable.all(); changed || !next.IsZero() && !now.Before(next) {
			pending, again, err := f.tellRecords(ctx, as, errs, told)
			if err != nil && ctx.Err() == nil {
				f.log.WithError(err).Warn("cannot keep what was told about records that cannot be read")
			}
			told, next = pending, time.Time{}
			if again > 0 {
				next = now.Add(again)
			}
		}
		if err := wait.Pause(ctx, unreadableEvery); err != nil {
			return err
		}
	}
}

// recordsName stands for the records that belong to no controller in the metric of alerts.
const recordsName = "records"

// tellRecords stores where incidents stand, and then tells what has to be told. It returns what was told and is not stored
// yet, and when another look is due; zero: when something has changed.
func (f *speaker) tellRecords(ctx context.Context, as Duties, errs map[string]string, told map[string]bool) (pending map[string]bool, again time.Duration, err error) {
	rec, err := as.ReadIncidents(ctx)
	if err != nil {
		return told, unreadableEvery, err
	}
	now := time.Now().UTC()
	next, tells, active, again := trackRecords(rec.Value.Records, together(rec.Value.Records, errs), now, told, f.unreadable.complete())
	if !reflect.DeepEqual(next, rec.Value.Records) && len(next)+len(rec.Value.Records) > 0 {
		rec.Value.Records = next
		err := as.WriteIncidents(ctx, rec)
		if errors.Is(err, store.ErrConflict) {
			return told, unreadableEvery, nil // a farm of an earlier version, which does it by its id
		}
		if err != nil {
			return told, unreadableEvery, err
		}
	}
	pending, _, _ = f.kit.teller.Due(ctx, "", tells, told)
	f.cfg.Metrics.Alerting(recordsName, active)
	if len(tells) > 0 {
		again = unreadableEvery // to store that
	}
	return pending, again, nil
}

// maxRecords is how many records that cannot be read are told by their keys; those besides are told together, as moreRecords.
// What was told about all of them is one record.
const (
	maxRecords  = 100
	moreRecords = "more records"
)

// together returns what is told of unreadable records, by key. Which ones are told by their keys does not change while they
// cannot be read, and none is added while there are more: they would be raised one by one as others are mended.
func together(before map[string][]rc.Incident, errs map[string]string) map[string]string {
	told, fresh := map[string]string{}, []string{}
	for key, text := range errs {
		if _, known := before[key]; known {
			told[key] = text
		} else {
			fresh = append(fresh, key)
		}
	}
	slices.Sort(fresh)
	_, more := before[moreRecords]
	room := maxRecords - len(before)
	if more {
		room++ // it is one of those before
	}
	if more && len(fresh) > room {
		room = 0
	}
	alone := min(len(fresh), max(room, 0))
	for _, key := range fresh[:alone] {
		told[key] = errs[key]
	}
	if rest := fresh[alone:]; len(rest) > 0 {
		told[moreRecords] = fmt.Sprintf("%d more records cannot be read: %s", len(rest), field.Few(rest, 3, ", "))
	}
	return told
}

// trackRecords moves the incidents of records that cannot be read, as alert.Track does those of a controller. Where not
// everything was looked for, what another farm had found stays as it is. It says after how long something is to be told; zero: nothing is.
func trackRecords(before map[string][]rc.Incident, errs map[string]string, now time.Time, told map[string]bool, complete bool) (next map[string][]rc.Incident, tells []alert.Tell, active []rc.ConditionType, again time.Duration) {
	keys := map[string]bool{}
	for key := range before {
		keys[key] = true
	}
	for key := range errs {
		keys[key] = true
	}
	next = map[string][]rc.Incident{}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		was, is := &rc.Status{RCID: key, Incidents: before[key]}, &rc.Status{RCID: key}
		reason, corrupt := errs[key]
		if !corrupt && !complete {
			next[key] = before[key]
			active = append(active, alert.Active(was, now)...)
			continue
		}
		if corrupt {
			is.Conditions = rc.SetCondition(nil, kindOf(key), true, reason, now)
		}
		var due time.Duration
		is.Incidents, due = alert.Track(alert.Input{Before: was, After: is, Now: now, Notified: told})
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

// kindOf returns what it is called that something is wrong with what is told under a key.
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

// joinedError is many errors that are told in a few words: a pass may meet thousands of one kind.
type joinedError struct{ errs []error }

// joined is errors.Join with a text that is not long.
func joined(errs []error) error {
	var some []error
	for _, err := range errs {
		if err != nil {
			some = append(some, err)
		}
	}
	if len(some) == 0 {
		return nil
	}
	return &joinedError{some}
}

// Error names the first few and says how many more there are.
func (e *joinedError) Error() string { return reconcile.Few(e.texts()) }

// Unwrap returns all of them.
func (e *joinedError) Unwrap() []error { return e.errs }

func (e *joinedError) texts() []string { return field.Each(e.errs, error.Error) }

// textsOf returns what an error consists of.
func textsOf(err error) []string {
	if many, is := errors.AsType[*joinedError](err); is {
		return many.texts()
	}
	return []string{err.Error()}
}

// alertGone tells that what is wrong with a controller is over, before the last of its records goes.
func (m *memory) alertGone(ctx context.Context, to alert.Teller, id string, st *rc.Status) {
	if st == nil {
		return
	}
	now := time.Now().UTC()
	for _, i := range st.Incidents {
		tell := alert.Tell{Incident: i, Resolved: true}
		if i.AlertedAt == nil && !m.notified[i.Key] || m.notified[tell.ID()] {
			continue
		}
		if i.ResolvedAt == nil {
			i.ResolvedAt = &now
		}
		if m.notified == nil {
			m.notified = map[string]bool{}
		}
		m.notified[tell.ID()] = true
		to.One(ctx, id, alert.Tell{Incident: i, Resolved: true})
	}
}

// track completes the plan's status with the incidents that follow from it, before it is stored.
func (ps *writer) track(plan *reconcile.Plan) {
	record := &ps.head.RC.Value
	plan.Status.Conditions = rc.SetCondition(plan.Status.Conditions, rc.Unclaimed, false, "", ps.snapshot.Now)
	if st := &plan.Status; st.LastError != "" || st.Is(rc.Unreadable) {
		st.Conditions = rc.SetCondition(st.Conditions, rc.Unreadable, st.LastError != "", st.LastError, ps.snapshot.Now)
	}
	incidents, due := alert.Track(alert.Input{
		Before: ps.head.Status, After: &plan.Status, Now: ps.snapshot.Now, Notified: ps.mem.notified,
		Quiet: record.Disabled || record.DeletedAt != nil,
	})
	plan.Status.Incidents = incidents
	if due > 0 && (plan.Again == 0 || due < plan.Again) {
		plan.Again = due
	}
}

// alert tells what the stored status says has to be told. It is called when the status has landed, and reports whether it
// told anything, which the next pass then stores.
func (ps *writer) alert(ctx context.Context, plan *reconcile.Plan) (told bool) {
	now := time.Now()
	pending, fresh, untold := ps.kit.teller.Due(ctx, ps.id, alert.Due(&plan.Status, now), ps.mem.notified)
	ps.mem.notified = pending
	if untold > 0 {
		plan.Again = soonest(plan.Again, alert.AskAgain)
	}
	ps.kit.metrics.Alerting(ps.id, alert.Active(&plan.Status, now))
	return fresh > 0
}
