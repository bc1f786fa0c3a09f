package alert_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// receiver is the other side of a hook.
type receiver struct {
	mu    sync.Mutex
	took  []string // status and key of what it took
	fails error    // for as long as it is set
	hang  chan struct{}
	told  []string // controllers whose owners were to look
}

func (r *receiver) post(ctx context.Context, m alert.Message) error {
	r.mu.Lock()
	hang := r.hang
	r.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fails != nil {
		return r.fails
	}
	r.took = append(r.took, m.Status+" "+m.Key)
	return nil
}

func (r *receiver) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

func (r *receiver) taken() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.took)
}

// hooked runs a hook until the test ends, on the clock of synctest.
func hooked(t *testing.T, r *receiver) (h *alert.Hook, reg *prometheus.Registry, log *strings.Builder, stop func()) {
	t.Helper()
	log, reg = &strings.Builder{}, prometheus.NewRegistry()
	logger, err := obs.NewLogger(log, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	h = alert.NewHook(alert.HookConfig{
		Post: r.post, Told: func(id string) { r.set(func() { r.told = append(r.told, id) }) }, Log: logger, Metrics: alert.NewHookMetrics(reg),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- h.Run(ctx) }()
	return h, reg, log, func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
		synctest.Wait()
	}
}

func incident(key string) alert.Incident {
	return alert.Incident{RCID: "web", Farm: "f1", Incident: rc.Incident{Key: key, Type: rc.NodeLost, Reason: "n1 is gone", Since: start}}
}

// An incident counts as told once the other side took it, and no asking waits for that.
func TestToldOnlyWhenTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{fails: errors.New("down")}
		h, reg, log, stop := hooked(t, r)
		defer stop()
		began := time.Now()
		for range 100 {
			if h.Raise(t.Context(), incident("k")) {
				t.Fatal("told, and nobody took it")
			}
		}
		if time.Since(began) > 0 {
			t.Error("asking waited")
		}
		for range 60 { // an hour, in which looks ask again
			<-time.After(time.Minute)
			if h.Raise(t.Context(), incident("k")) {
				t.Fatal("told, and nobody took it")
			}
		}
		r.set(func() { r.fails = nil })
		<-time.After(2 * time.Minute)
		if got := r.taken(); !slices.Equal(got, []string{"firing k"}) || !slices.Equal(r.told, []string{"web"}) {
			t.Errorf("taken %v, looks %v", got, r.told)
		}
		if !h.Raise(t.Context(), incident("k")) {
			t.Error("not told, and it was taken")
		}
		if n := strings.Count(log.String(), "alert raised"); n != 1 || strings.Count(log.String(), "does not take") != 1 || strings.Count(log.String(), "takes alerts again") != 1 {
			t.Errorf("raised %d times in\n%s", n, log)
		}
		want := `
# HELP rcfarm_farm_alerts_pending Incidents, or ends of incidents, that --alert-webhook has not taken yet
# TYPE rcfarm_farm_alerts_pending gauge
rcfarm_farm_alerts_pending 0
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "rcfarm_farm_alerts_pending"); err != nil {
			t.Error(err)
		}
		end := incident("k")
		end.ResolvedAt = &start
		h.Resolve(t.Context(), end)
		synctest.Wait()
		if !h.Resolve(t.Context(), end) || !slices.Equal(r.taken(), []string{"firing k", "resolved k"}) {
			t.Errorf("taken %v", r.taken())
		}
	})
}

// Only the latest of an incident is sent, and never its beginning after its end.
func TestTheLatestOfAnIncident(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{fails: errors.New("down")}
		h, _, _, stop := hooked(t, r)
		defer stop()
		h.Raise(t.Context(), incident("never-taken"))
		<-time.After(time.Minute)
		h.Resolve(t.Context(), incident("never-taken"))
		h.Raise(t.Context(), incident("never-taken")) // a look that is late
		r.set(func() { r.fails = nil })
		<-time.After(2 * time.Minute)
		if got := r.taken(); !slices.Equal(got, []string{"resolved never-taken"}) {
			t.Errorf("taken %v", got)
		}
		// One that ends while its beginning is under way.
		r.set(func() { r.took, r.hang = nil, make(chan struct{}) })
		h.Raise(t.Context(), incident("k"))
		synctest.Wait()
		h.Resolve(t.Context(), incident("k"))
		synctest.Wait()
		close(r.hang)
		r.set(func() { r.hang = nil })
		synctest.Wait()
		if got := r.taken(); !slices.Equal(got, []string{"firing k", "resolved k"}) {
			t.Errorf("taken %v", got)
		}
	})
}

// The beginning of an incident that no look asks for any more is another farm's to tell, which may have told its end,
// too.
func TestWhatNobodyAsksForIsNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{fails: errors.New("down")}
		h, _, _, stop := hooked(t, r)
		defer stop()
		h.Raise(t.Context(), incident("moved"))
		h.Resolve(t.Context(), incident("over"))
		<-time.After(10 * time.Minute)
		r.set(func() { r.fails = nil })
		<-time.After(10 * time.Minute)
		if got := r.taken(); !slices.Equal(got, []string{"resolved over"}) {
			t.Errorf("taken %v", got)
		}
	})
}

// What waits is bounded. What finds no room is not told, and is asked for again by later looks.
func TestTheQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{hang: make(chan struct{})}
		h, reg, _, stop := hooked(t, r)
		defer stop()
		for i := range 10_001 {
			h.Raise(t.Context(), incident(fmt.Sprint(i)))
		}
		if h.Raise(t.Context(), incident("one more")) {
			t.Error("told")
		}
		want := `
# HELP rcfarm_farm_alerts_pending Incidents, or ends of incidents, that --alert-webhook has not taken yet
# TYPE rcfarm_farm_alerts_pending gauge
rcfarm_farm_alerts_pending 10000
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "rcfarm_farm_alerts_pending"); err != nil {
			t.Error(err)
		}
		close(r.hang)
		synctest.Wait()
		h.Raise(t.Context(), incident("one more"))
		synctest.Wait()
		if n := len(r.taken()); n != 10_001 || !h.Raise(t.Context(), incident("one more")) {
			t.Errorf("%d taken", n)
		}
	})
}

// The form of what is sent: docs/running.md shows it.
func TestTheFormOfAMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent []string
		var mu sync.Mutex
		log, err := obs.NewLogger(io.Discard, "info", "text")
		if err != nil {
			t.Fatal(err)
		}
		h := alert.NewHook(alert.HookConfig{
			Post: func(_ context.Context, m alert.Message) error {
				data, err := json.Marshal(m)
				mu.Lock()
				defer mu.Unlock()
				sent = append(sent, string(data))
				return err
			},
			Told: func(string) {}, Log: log, Metrics: alert.NewHookMetrics(prometheus.NewRegistry()),
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- h.Run(ctx) }()
		h.Raise(ctx, incident("web/NodeLost/1767323045000"))
		synctest.Wait()
		over := alert.Incident{Farm: "f1", Incident: rc.Incident{
			Key: "shop/RolloutTrouble/1767323045000", Type: rc.RolloutTrouble, Reason: "failed", Since: start, ResolvedAt: &start,
		}}
		h.Resolve(ctx, over)
		synctest.Wait()
		cancel()
		<-ended
		want := []string{
			`{"key":"web/NodeLost/1767323045000","status":"firing","kind":"NodeLost","subject":"web","rc_id":"web","reason":"n1 is gone","since":"2026-01-02T03:04:05Z","farm":"f1","runbook":"docs/runbook.md#nodelost"}`,
			`{"key":"shop/RolloutTrouble/1767323045000","status":"resolved","kind":"RolloutTrouble","subject":"shop","reason":"failed","since":"2026-01-02T03:04:05Z","resolved_at":"2026-01-02T03:04:05Z","farm":"f1","runbook":"docs/runbook.md#rollouttrouble"}`,
		}
		if !slices.Equal(sent, want) {
			t.Errorf("sent\n%s\nwant\n%s", strings.Join(sent, "\n"), strings.Join(want, "\n"))
		}
	})
}
